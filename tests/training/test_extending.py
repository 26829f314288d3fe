"""A run that ended and was extended is the run that would have been as long from the start, bit for bit."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leadline.cli.main import main
from leadline.errors import LeadlineError, UsageError
from leadline.training import load_model, train
from leadline.training.checkpoint import checkpoints, find_checkpoint, step_of
from leadline.training.config import RunConfig, Schedule
from leadline.training.optimiser import rate_at
from leadline.training.records import SUMMARY, read_summary
from leadline.training.run_folder import config_of

Lines = Callable[[Path], list[dict[str, Any]]]
BATCH = 2 * 16
COURSES: list[dict[str, Any]] = [
    {"schedule": "wsd", "warmup": 0.2, "decay": 0.4},
    {"schedule": "cosine", "warmup": 0.2},
]
each_course = pytest.mark.parametrize("course", COURSES, ids=["wsd", "cosine"])


def assert_same_end(one: Path, two: Path, lines: Lines) -> None:
    assert lines(one / "steps.jsonl") == lines(two / "steps.jsonl")
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (find_checkpoint(one) / name).read_bytes() == (find_checkpoint(two) / name).read_bytes(), name
    assert (one / "gradient_norms.safetensors").read_bytes() == (two / "gradient_norms.safetensors").read_bytes()


@each_course
@pytest.mark.parametrize("design", ["mgr", "bhyt"])
def test_it_is_the_longer_run(config: Any, tmp_path: Path, lines: Lines, course: dict[str, Any], design: str) -> None:
    """6 steps, then 4 more, then 3 more."""
    out = tmp_path / "extended"
    train(config(design, **course), out)
    summary = read_summary(out / SUMMARY)
    train(design, out, extend=4 * BATCH)
    train(config_of(out), out, extend=2 * BATCH + 1)
    found = config_of(out)
    assert (found.data.tokens, found.schedule.extended) == (13 * BATCH, (6, 10))
    train(found, tmp_path / "whole")
    assert_same_end(out, tmp_path / "whole", lines)
    aside = out / "ended-6"
    assert read_summary(aside / SUMMARY) == summary
    model, _ = load_model(aside)
    train(config(design, **course), tmp_path / "short")
    short, _ = load_model(tmp_path / "short")
    assert all(bool((p == q).all()) for p, q in zip(model.parameters(), short.parameters(), strict=True))


def test_wsd_without_warmup_is_a_plain_run(config: Any, tmp_path: Path, lines: Lines) -> None:
    """Then nothing but the length depends on when it was planned."""
    course = {"schedule": "wsd", "warmup": 0.0}
    train(config(**course), tmp_path / "extended")
    train("prenorm", tmp_path / "extended", extend=9 * BATCH)
    train(config(steps=15, **course), tmp_path / "plain")
    assert_same_end(tmp_path / "extended", tmp_path / "plain", lines)


@each_course
def test_stopped_and_resumed_with_the_same_call(
    config: Any, tmp_path: Path, lines: Lines, course: dict[str, Any]
) -> None:
    for name in ("whole", "parts"):
        train(config(**course), tmp_path / name)
    train("prenorm", tmp_path / "whole", extend=6 * BATCH)

    def stop(told: dict[str, Any]) -> None:
        if told["step"] == 8:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train("prenorm", tmp_path / "parts", extend=6 * BATCH, on_step=stop)
    with pytest.raises(UsageError, match=r"has not ended, its newest checkpoint is of step 8 of 12"):
        train("prenorm", tmp_path / "parts", extend=7 * BATCH)
    train("prenorm", tmp_path / "parts", extend=6 * BATCH)
    assert_same_end(tmp_path / "whole", tmp_path / "parts", lines)


@each_course
@pytest.mark.parametrize("place", ["partial", "aside", "dropped"])
def test_killed_while_the_end_is_set_aside(
    config: Any, tmp_path: Path, lines: Lines, course: dict[str, Any], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("whole", "killed"):
        train(config(**course), tmp_path / name)
    train("prenorm", tmp_path / "whole", extend=3 * BATCH)
    home = "leadline.training.extending."
    names = {
        "partial": home + "os.replace",
        "aside": home + "drop_later",
        "dropped": "leadline.training.run_folder.write_json",
    }

    def killed(*_: Any, **__: Any) -> None:
        raise SystemError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(names[place], killed)
        with pytest.raises(SystemError):
            train("prenorm", tmp_path / "killed", extend=3 * BATCH)
    if place == "dropped":
        with pytest.raises(UsageError, match="resume it without --extend first"):
            train("prenorm", tmp_path / "killed", extend=3 * BATCH)
        train(config_of(tmp_path / "killed"), tmp_path / "killed")
    train("prenorm", tmp_path / "killed", extend=3 * BATCH)
    assert_same_end(tmp_path / "whole", tmp_path / "killed", lines)


def test_the_checkpoint_before_the_decay_stays(config: Any, tmp_path: Path) -> None:
    train(config(schedule="wsd", decay=0.5, checkpoint_every=1), tmp_path)
    assert [step_of(path) for path in checkpoints(tmp_path)] == [3, 5, 6]
    shutil.rmtree(checkpoints(tmp_path)[0])
    with pytest.raises(UsageError, match=r"no checkpoint of step 3 or before, where its decay begins.*--tokens 224"):
        train("prenorm", tmp_path, extend=BATCH)
    assert (tmp_path / SUMMARY).is_file()
    assert not (tmp_path / "ended-6").exists()


def test_what_does_not_work(config: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run's folder"):
        train("prenorm", tmp_path / "none", extend=100)
    out = tmp_path / "run"
    train(config(), out)
    with pytest.raises(UsageError, match="--extend goes on from a checkpoint of its own; leave out --resume previous"):
        train("prenorm", out, extend=100, resume="previous")
    with pytest.raises(UsageError, match=r"holds a run with --design prenorm, not mgr"):
        train("mgr", out, extend=100)
    with pytest.raises(UsageError, match=r"holds a run with --clip 1.0, not 0.5"):
        train("prenorm", out, extend=100, clip=0.5)
    assert (out / SUMMARY).is_file()
    assert not (out / "ended-6").exists()
    with pytest.raises(UsageError, match="each larger than the one before"):
        Schedule(extended=(3, 3))
    with pytest.raises(UsageError, match="should lie before the run's last step, 6"):
        train(config(extended=(6,)), tmp_path / "other")
    train("prenorm", out, extend=100)
    with pytest.raises(UsageError, match=r"holds a run with --tokens 320, not 192"):
        train(config(), out)


def test_nothing_is_lost_on_a_full_disk(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(config(), tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("leadline.training.extending.shutil.copy2", full)
        patch.setattr("leadline.training.extending.os.link", full)
        with pytest.raises(LeadlineError, match=r"can't set aside what had ended in .*ended-6: No space left"):
            train("prenorm", tmp_path, extend=100)
    assert read_summary(tmp_path / SUMMARY).steps == 6


def test_rates() -> None:
    """The course of an extended run has no step that a longer one would not have."""
    plain, longer = Schedule(schedule="wsd", warmup=0.1), Schedule(schedule="wsd", warmup=0.1, extended=(100,))
    steady = [rate_at(step, 100, plain) for step in range(1, 81)]
    assert steady == [rate_at(step, 200, longer) for step in range(1, 81)]
    assert [rate_at(step, 200, longer) for step in (81, 160, 200)] == [1, 1, pytest.approx(0.1)]
    again = Schedule(warmup=0.1, extended=(100,))
    rates = [rate_at(step, 150, again) for step in range(1, 151)]
    assert rates[:100] == [rate_at(step, 100, Schedule(warmup=0.1)) for step in range(1, 101)]
    assert rates[100:105] == pytest.approx([0.28, 0.46, 0.64, 0.82, 1.0])
    assert rates[-1] == pytest.approx(0.1)


def test_the_command(config: Any, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its other options are the run's own."""
    out = str(tmp_path / "run")
    train(config(schedule="wsd", weight_decay=0.05), out)
    assert main(["train", "prenorm", "--out", out, "--extend", "0.1k"]) == 0
    said = capsys.readouterr().err
    assert "extends a run of 6 steps to 10, from step 4 on as if it had been as long from the start" in said
    found: RunConfig = config_of(Path(out))
    assert (found.optimizer.weight_decay, found.data.tokens) == (0.05, 10 * BATCH)
