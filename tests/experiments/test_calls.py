"""Every verb from Python: the options by their names, a table, a report, and the command that repeats it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import leadline as ll
from leadline.cli.main import main
from leadline.data import prepare
from leadline.errors import UsageError
from leadline.hub import open_model

SHAPE = {"blocks": 3, "dim": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 12, "context": 16, "batch_size": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    for number in range(2):
        (folder / f"{number}.txt").write_text("By the deep, six! By the mark, seven! " * 60)
    prepare([folder], folder / "set", heldout_last=1)
    return str(folder / "set")


@pytest.fixture(scope="module")
def run(data: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("runs") / "prenorm"
    return ll.train("prenorm", out, data=data, steps=6, evaluate_every=3, evaluate_tokens=64, **SHAPE)


def test_train(run: Any, data: str) -> None:
    found = run.to_pandas()
    assert list(found.index) == [1, 2, 3, 4, 5, 6]
    assert found["heldout_loss"].notna().tolist() == [False, False, True, False, False, True]
    assert found["bits_per_byte"].iloc[-1] == run.bits_per_byte
    assert "Loss over training" in run._repr_html_()
    assert run == ll.train("prenorm", run.out, data=data, steps=6, evaluate_every=3, evaluate_tokens=64, **SHAPE)


def test_compare(data: str, tmp_path: Path) -> None:
    out = tmp_path / "found"
    found = ll.compare("prenorm", "mgr", data=data, steps=2, seeds="1", measure_tokens=32, jobs=1, out=out, **SHAPE)
    assert list(found.to_pandas().index) == ["prenorm", "mgr-competitive"]
    assert not found.failed
    assert found.headline in found._repr_html_()
    assert found.content == json.loads((out / "results.json").read_text())
    command = found.content["repeat"]["command"]
    assert command.startswith("leadline compare prenorm mgr ")
    assert command.endswith(f" --out {out}")
    assert main(command.split()[1:]) == 0, "what the report says repeats it"
    with pytest.raises(UsageError, match="stepz"):
        ll.compare("prenorm", stepz=2)


def test_a_study_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="'compare' is not known; gfa, cascade, pruning work"):
        ll.study("compare")


def test_probe(run: Any, data: str, tmp_path: Path) -> None:
    options = {"data": data, "tokens": 64, "parts": "ablation,similarity"}
    found = ll.probe(run.out, **options)
    table = found.to_pandas()
    assert list(table.index) == [("prenorm", 0), ("prenorm", 1), ("prenorm", 2)]
    assert table["importance"].notna().all()
    assert table["output_rms"].isna().all()
    assert "Block Influence" in found._repr_html_()
    assert found.out is None
    written = ll.probe(open_model(run.out, "cpu"), out=tmp_path / "probe", **options)
    assert written.rows() == found.rows(), "a model that is open already is the same model"
    assert (tmp_path / "probe" / "report.html").is_file()
    command = written.content["command"]
    assert (
        command
        == f"leadline probe {run.out} --data {data} --tokens 64 --parts ablation,similarity --out {tmp_path / 'probe'}"
    )
    with pytest.raises(UsageError, match="tokens=0 is too small"):
        ll.probe(run.out, tokens=0)


def test_prune(run: Any, data: str, tmp_path: Path) -> None:
    options = {"criterion": "magnitude", "count": 1, "data": data, "evaluate_tokens": 64, "calibration_tokens": 32}
    dry = ll.prune(run.out, **options)
    made = ll.prune(str(run.out), tmp_path / "smaller", **options)
    assert dry.out is None
    assert made.content["after"] == dry.content["after"]
    table = made.to_pandas()
    assert table["cut"].sum() == 1
    assert table["score"].idxmin() == table.index[table["cut"]][0]
    assert open_model(tmp_path / "smaller", "cpu").stack.blocks == 2
    made.write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Without 1 of 3 blocks perplexity goes from" in page
    assert "Score of every unit" in page
    with pytest.raises(UsageError, match="criterion is missing"):
        ll.prune(run.out, count=1, data=data)
    with pytest.raises(UsageError, match="normalised=True goes with criterion=cfp alone"):
        ll.prune(run.out, criterion="taylor", count=1, normalised=True, data=data)
    named = ll.prune(run.out, blocks="1", data=data, evaluate_tokens=64)
    assert [(row["unit"], row["cut"]) for row in named.rows()] == [("0", False), ("1", True), ("2", False)]
    assert "Score of every unit" not in named.page()
