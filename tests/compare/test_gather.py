from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from leadline.compare.gather import mean_of, measured, read_run, thin
from leadline.errors import LeadlineError


def write_run(folder: Path, bits: float, share: list[float], **summary: Any) -> Path:
    folder.mkdir()
    summary = {
        "loss": bits * math.log(2),
        "bits_per_byte": bits,
        "tokens_per_second": 1000.0,
        "peak_memory_bytes": 5,
        **summary,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    rows = [{"step": s, "tokens": s * 10, "loss": 3.0 + bits - s} for s in (1, 2)]
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "tok')
    evals = [{"step": 2, "tokens": 20, "bits_per_byte": 9.0}, {"step": 2, "tokens": 20, "bits_per_byte": bits}]
    (folder / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    (folder / "gradient.json").write_text(json.dumps({"share": share}))
    weights = [[1.0], [bits, 1 - bits]]
    (folder / "probes.json").write_text(json.dumps({"removal": [bits, None], "depth_weights": weights}))
    return folder


def test_means_over_seeds(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / "a", 2.0, [0.5, 0.5], peak_memory_bytes=7)),
        read_run(write_run(tmp_path / "b", 3.0, [0.9, 0.1], tokens_per_second=3000.0)),
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


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", 2.0, [1.0])
    (folder / "summary.json").write_text("{")
    with pytest.raises(LeadlineError, match=r"summary\.json cannot be read"):
        read_run(folder)


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
    rows = [{"step": i, "tokens": i, "loss": 1.0, "tokens_per_second": v} for i, v in enumerate((10.0, 500.0, 510.0))]
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert measured([read_run(folder)])["tokens_per_second"] == 500.0
