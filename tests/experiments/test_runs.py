from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from leadline.experiments.runs import mean_of, measured, read_run, thin
from leadline.files import write_json


def write_run(folder: Path, bits: float, share: list[float], speed: float = 1000.0, memory: int = 5) -> Path:
    folder.mkdir()
    loss, tokens = bits * math.log(2), 20
    seconds = tokens / speed
    summary = {
        "loss": loss,
        "bits_per_byte": bits,
        "train_loss": 1.0 + bits,
        "steps": 2,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "peak_memory_bytes": memory,
        "parameters": 3,
        "flops_per_token": 4,
        "depth_flops_per_token": 0,
        "seconds": seconds,
        "learning_rate": 0.1,
        "notes": [],
    }
    write_json(folder / "summary.json", summary)
    rows = [{"step": s, "tokens": s * 10, "loss": 3.0 + bits - s} for s in (1, 2)]
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "tok')
    same = {"step": 2, "tokens": 20, "loss": loss}
    evals = [{**same, "bits_per_byte": 9.0}, {**same, "bits_per_byte": bits}]
    (folder / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    write_json(folder / "gradient.json", {"share": share})
    probes: dict[str, Any] = dict.fromkeys(("depth_weights", "gates", "stream_diversity", "mixing"))
    probes |= {name: [] for name in ("read_rms", "output_rms", "block_output_rms", "angular_distance")}
    weights = [[1.0], [bits, 1 - bits]]
    write_json(folder / "probes.json", {**probes, "tokens": 20, "removal": [bits, None], "depth_weights": weights})
    return folder


def change(path: Path, **entries: Any) -> None:
    """Other entries in a JSON object; ... removes one."""
    content = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))


def test_means_over_seeds(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / "a", 2.0, [0.5, 0.5], memory=7)),
        read_run(write_run(tmp_path / "b", 3.0, [0.9, 0.1], speed=3000.0)),
    ]
    got = measured(runs)
    assert got["status"] == "ok"
    assert got["bits_per_byte"]["mean"] == 2.5
    assert got["bits_per_byte"]["values"] == [2.0, 3.0]
    assert got["bits_per_byte"]["high"] == pytest.approx(2.5 + 12.7062 * 0.5, abs=1e-3)
    assert got["tokens_per_second"] == 2000.0, "the median over seeds"
    assert got["peak_memory_bytes"] == 7
    assert got["curve"]["tokens"] == [20]
    assert got["curve"]["bits_per_byte"] == [2.5]
    assert got["curve"]["train_loss"] == {"tokens": [10, 20], "loss": [4.5, 3.5]}
    assert got["depth"]["gradient_share"] == pytest.approx([0.7, 0.3])
    assert got["depth"]["removal"] == [2.5, None]
    assert got["depth"]["depth_weights"] == [[1.0], [2.5, -1.5]]
    assert got["depth"]["gates"] is None


def test_failed_and_partial_designs(tmp_path: Path) -> None:
    good = read_run(write_run(tmp_path / "a", 2.0, [1.0]))
    bad = write_run(tmp_path / "b", 2.0, [1.0])
    (bad / "failed.json").write_text(json.dumps({"error": "out of memory", "exit_code": 1}))
    missing = read_run(tmp_path / "never")
    partial = measured([good, read_run(bad)])
    assert (partial["status"], partial["error"]) == ("partial", "out of memory")
    assert partial["bits_per_byte"]["values"] == [2.0, None]
    assert partial["bits_per_byte"]["low"] is None
    failed = measured([missing])
    assert (failed["status"], failed["error"]) == ("failed", "did not finish")
    assert failed["loss"] is failed["curve"] is failed["depth"] is None


DAMAGE: dict[str, list[tuple[dict[str, Any], str]]] = {
    "summary.json": [
        ({"loss": ...}, "lacks loss"),
        ({"loss": "2"}, "loss should be float"),
        ({"loss": None}, "loss should be float"),
        ({"loss": True}, "loss should be float"),
        ({"loss": 1.5}, r"says loss 1\.5, and evals\.jsonl"),
        ({"bits_per_byte": 1.5}, r"says bits_per_byte 1\.5, and evals\.jsonl"),
        ({"train_loss": 1.5}, r"says train_loss 1\.5, and steps\.jsonl"),
        ({"tokens": 10}, r"says tokens 10, and steps\.jsonl"),
        ({"steps": 3}, "line for each step from 1 to 3"),
        ({"seconds": 5.0}, "tokens_per_second"),
        ({"peak_memory_bytes": -1}, "peak_memory_bytes is -1"),
        ({"notes": "x"}, "notes should be a list"),
    ],
    "gradient.json": [({"share": ...}, "lacks share"), ({"share": [-1]}, "a share is a number from 0")],
    "probes.json": [
        ({"removal": ...}, "lacks removal"),
        ({"removal": 1.0}, "removal should be a list"),
        ({"depth_weights": [["1"]]}, r"depth_weights\[0\]"),
    ],
    "failed.json": [({"error": 3, "exit_code": 1}, "error should be str")],
}


@pytest.mark.parametrize(
    ("name", "entries", "said"), [(name, *case) for name, cases in DAMAGE.items() for case in cases]
)
def test_a_damaged_run_is_named_and_gives_no_numbers(
    tmp_path: Path, name: str, entries: dict[str, Any], said: str
) -> None:
    good, bad = write_run(tmp_path / "a", 2.0, [1.0]), write_run(tmp_path / "b", 2.0, [1.0])
    if not (bad / name).exists():
        (bad / name).write_text("{}")
    change(bad / name, **entries)
    run = read_run(bad)
    assert run.status == "damaged"
    assert re.search(rf"b is damaged: .*{name}.*{said}", str(run.error))
    assert run.value("loss") is run.summary is run.gradient is None
    got = measured([read_run(good), run])
    assert (got["status"], got["error"], got["damaged"]) == ("partial", run.error, [str(bad)])
    assert got["loss"]["values"] == [2.0 * math.log(2), None]


@pytest.mark.parametrize("name", ["steps.jsonl", "evals.jsonl"])
@pytest.mark.parametrize("line", ["", "[]", "{", '{"step": 1}', '{"step": 5, "tokens": 1, "loss": 1}', '{"step": "1"}'])
def test_a_bad_line_in_the_middle_is_damage(tmp_path: Path, name: str, line: str) -> None:
    folder = write_run(tmp_path / "a", 2.0, [1.0])
    first, *rest = (folder / name).read_text().split("\n")
    (folder / name).write_text("\n".join([first, line, *rest]))
    assert re.search(rf"{name}, line [23] is damaged", str(read_run(folder).error))


def test_a_finished_run_without_its_records_is_damaged(tmp_path: Path) -> None:
    for name in ("steps.jsonl", "evals.jsonl", "gradient.json"):
        folder = write_run(tmp_path / name, 2.0, [1.0])
        (folder / name).unlink()
        assert read_run(folder).status == "damaged"
    unfinished = write_run(tmp_path / "c", 2.0, [1.0])
    (unfinished / "summary.json").unlink()
    assert read_run(unfinished).status == "unfinished"


def test_means_of_nested_lists() -> None:
    assert mean_of([[[1.0], [2.0, 4.0]], [[3.0], [2.0, 0.0]]]) == [[2.0], [2.0, 2.0]]
    assert mean_of([None, 2.0, math.nan]) == 2.0
    assert mean_of([None]) is None
    assert mean_of([[], []]) == []


def test_long_curves_are_thinned() -> None:
    rows = [{"tokens": i, "loss": float(i)} for i in range(1, 1001)]
    got = thin([*rows, {"tokens": 1001, "loss": math.nan}], points=100)
    assert len(got["tokens"]) == 100
    assert got["tokens"][0] == 10
    assert got["loss"][0] == 5.5


def test_speed_is_the_median_of_steps(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", 2.0, [1.0])
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()[:2]]
    rows = [{**row, "tokens_per_second": speed} for row, speed in zip(rows, (10.0, 500.0), strict=True)]
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert measured([read_run(folder)])["tokens_per_second"] == 255.0
