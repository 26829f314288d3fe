"""`leadline train`: its options become a run, and it says how far the run is."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from leadline.cli.main import main
from leadline.cli.train import Arguments, Pace, Progress, configuration, duration, plan_lines, progress
from leadline.data import prepare
from leadline.errors import UsageError
from leadline.training import RunConfig
from leadline.training.resolve import decide


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for number in range(2):
        (folder / f"{number}.txt").write_text("By the deep, six! By the mark, seven! " * 8)
    prepare([folder], folder / "set", heldout_last=1)
    return folder / "set"


def small(data: Path, out: Path, *more: str) -> list[str]:
    words = ["train", "mgr(streams=2)", "--data", str(data), "--out", str(out), "--blocks", "2", "--context", "16"]
    return [*words, "--batch-size", "2", *more]


def test_a_run(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(small(data, tmp_path / "run", "--steps", "3", "--json", str(tmp_path / "said.json"))) == 0
    said = capsys.readouterr()
    assert said.out.startswith("mgr(streams=2): ")
    assert "96 tokens" in said.out
    assert "parameters" in said.out
    assert "FLOPs a token" in said.out
    length, evaluations, first, *_ = said.err.splitlines()
    assert length == "3 steps of 32 tokens"
    assert evaluations == "an evaluation every step, on 16 held-out tokens of 304 (--evaluate-tokens sets how many)"
    assert first.startswith("step 1/3  loss 5.")
    evals = [json.loads(line) for line in (tmp_path / "run" / "evals.jsonl").read_text().splitlines()]
    assert [line for line in said.err.splitlines() if "held-out loss" in line] == [
        f"step {e['step']}  held-out loss {e['loss']:.4f}  {e['bits_per_byte']:.4f} bits per byte" for e in evals
    ]
    assert said.err.splitlines()[-2].startswith("step 3/3  0 s left  loss 4.")
    assert json.loads((tmp_path / "said.json").read_text()) == json.loads(
        (tmp_path / "run" / "summary.json").read_text()
    )


def test_a_note(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = small(data, tmp_path / "run", "--tokens", "32")
    words[1] = "attnres + bhyt"
    assert main(words) == 0
    assert "note: BHyT's norm before the MLP is exact here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--steps", "3", "--tokens", "1k"), "--tokens and --steps"),
        (("--steps", "some"), "--steps 'some' is not a count"),
        (("--tokens", "1.00001"), "--tokens '1.00001' is not a whole number"),
        (("--evaluate-tokens", "few"), "--evaluate-tokens 'few'"),
        (("--lr", "-1"), "--lr -1"),
        (("--preset", "tini"), "Did you mean tiny"),
        (("--accumulation", "3"), "--accumulation 3"),
        (("--data", "sotuu"), "Did you mean sotu"),
        (("--device", "abacus"), "--device abacus"),
    ],
)
def test_bad_options(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    assert main(small(data, tmp_path / "run", *more)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_options_reach_the_run(tmp_path: Path) -> None:
    """Every option but those that are spelt differently; a new one that is forgotten is found here."""
    plain = Arguments(design="mgr", out=tmp_path)
    renamed = {"lr", "blocks", "steps", "out", "json", "resume"}
    fields = {f.name for f in dataclasses.fields(RunConfig)}
    assert {f.name for f in dataclasses.fields(Arguments)} - renamed <= fields
    assert fields - {f.name for f in dataclasses.fields(Arguments)} == {"learning_rate", "shape"}
    changes: dict[str, Any] = {
        "tokens": "4k",
        "lr": 0.5,
        "blocks": 3,
        "batch_size": 7,
        "clip": None,
        "schedule": "wsd",
        "decay_embeddings": True,
        "evaluate_tokens": "1k",
        "final_fraction": 0.0,
    }
    config = configuration(dataclasses.replace(plain, **changes))
    assert (config.tokens, config.learning_rate, config.shape) == (4000, 0.5, {"blocks": 3})
    assert (config.batch_size, config.clip, config.schedule, config.decay_embeddings) == (7, None, "wsd", True)
    assert (config.evaluate_tokens, config.final_fraction) == (1000, 0.0)
    defaults = configuration(plain)
    assert defaults == RunConfig.of(design="mgr", data="sotu")


def test_what_a_run_will_do_is_said_before_it(data: Path) -> None:
    def lines(**more: Any) -> list[str]:
        shape = {"blocks": 2, "dim": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 12}
        chosen = {"context": 16, "batch_size": 2, "tokens": 96, **more}
        return plan_lines(decide(RunConfig.of(design="prenorm", data=str(data), **shape, **chosen)))

    # The text has 19 windows of 16 tokens.
    assert lines()[0] == "3 steps of 32 tokens"
    assert lines(tokens=960)[0] == "30 steps of 32 tokens: 3.2 epochs of 304 tokens"
    assert lines(tokens=304)[0] == "10 steps of 32 tokens: 1.1 epochs of 304 tokens"
    assert lines(evaluate_tokens=10**6)[1] == "an evaluation every step, on 304 held-out tokens"
    assert lines(tokens=960, evaluate_tokens=160)[1].startswith(
        "an evaluation every 3 steps, on 160 held-out tokens of 304 ("
    )
    assert len(lines()) == 2
    for more, what in (
        ({"compile": True}, "compiling the model: "),
        ({"compile_blocks": True}, "compiling the model: "),
        ({"backend": "compiled"}, "compiling the operators along depth: "),
    ):
        assert lines(**more)[2].startswith(what)


def test_steps_follow_the_presets_batch(tmp_path: Path) -> None:
    plain = Arguments(design="mgr", out=tmp_path, steps="10")
    assert configuration(plain).tokens == 10 * 1024
    assert configuration(dataclasses.replace(plain, context=32)).tokens == 10 * 8 * 32
    with pytest.raises(UsageError, match="preset"):
        configuration(dataclasses.replace(plain, preset="none"))


def told(step: int, steps: int = 100) -> dict[str, Any]:
    return {"step": step, "steps": steps, "loss": 2.5, "lr": 1e-3, "grad_norm": 1.25, "tokens_per_second": 3456.7}


def test_the_time_left() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.due(told(41), 5.0)
    assert pace.line(told(41)) == "step 41/100  loss 2.5000  lr 1.00e-03  norm 1.25  3,457 tokens/s"
    now = 4.0
    assert not pace.due(told(43), 5.0)
    now = 10.0
    assert pace.due(told(46), 5.0)
    assert pace.line(told(46)).startswith("step 46/100  1 min 48 s left  loss")
    assert pace.due(told(100), 5.0)
    assert pace.line(told(100)).startswith("step 100/100  0 s left")


def test_a_long_evaluation_is_spoken_of() -> None:
    now = 0.0
    said: list[str] = []
    progress = Progress(said.append, 5.0, lambda: now)
    progress(told(41))
    said.clear()
    progress.evaluating(41, 2.0)
    now = 4.0
    progress.evaluating(41, 4.0)
    assert not said
    now = 6.0
    progress.evaluating(41, 6.0)
    now = 7.0
    progress.evaluating(41, 7.0)
    progress(told(42))
    assert said == ["step 41  evaluating for 6 s  Ctrl-C takes effect after it"]
    now = 12.0
    progress(told(43))
    assert said[1].startswith("step 43/100")


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0 s"), (59.4, "59 s"), (250, "4 min 10 s"), (7260, "2 h 1 min")])
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_live_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    with progress() as on_step:
        on_step(told(1))
        on_step(told(2))
        on_step.evaluated({"step": 2, "loss": 2.25, "bits_per_byte": 3.25})
        on_step(told(100))
    said = capsys.readouterr().err
    assert "step 1/100" in said
    assert "step 2/100" not in said
    assert "step 2  held-out loss 2.2500  3.2500 bits per byte" in said
    assert "step 100/100" in said
    # A narrow terminal cuts the line; it never wraps.
    assert "…" in said
    assert "tokens/s" not in said
