"""Trackers get every record once, close however a run ends, and know a resumed run again."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leadline.cli.options import parse
from leadline.cli.train import Arguments
from leadline.errors import LeadlineError, UsageError
from leadline.training import train
from leadline.training.config import RunConfig, options_of_run
from leadline.training.tracking import trackers_of


class StandIn:
    """A module with the interface that wandb and trackio share."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []
        self.finished = 0

    def init(self, **options: Any) -> None:
        self.begun.append(options)

    def log(self, values: dict[str, Any], step: int) -> None:
        self.records.append({"step": step, **values})

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture(params=["wandb", "trackio"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, request.param, stand_in)
    return SimpleNamespace(name=request.param, told=stand_in)


def test_every_step_and_evaluation(config: Any, tmp_path: Path, module: Any) -> None:
    summary = train(config(log_to=module.name, evaluate_every=2), tmp_path / "run")
    (begun,) = module.told.begun
    assert begun["project"] == "leadline"
    assert begun["name"].startswith("run")
    assert begun["config"]["design"] == "prenorm"
    losses = [record["step"] for record in module.told.records if "loss" in record]
    assert losses == list(range(1, summary.steps + 1))
    evaluated = [record for record in module.told.records if "heldout_loss" in record]
    assert evaluated[-1]["bits_per_byte"] == summary.bits_per_byte
    assert module.told.finished == 1


def test_a_resumed_run_is_the_same_there(config: Any, tmp_path: Path, module: Any) -> None:
    def stop(told: dict[str, Any]) -> None:
        if told["step"] == 2:
            raise KeyboardInterrupt

    asked = config(log_to=module.name, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        train(asked, tmp_path / "run", on_step=stop)
    assert module.told.finished == 1
    train(asked, tmp_path / "run")
    first, second = module.told.begun
    assert first == second
    assert first["resume"] == "allow"


def test_one_that_cannot_begin(config: Any, tmp_path: Path, module: Any) -> None:
    def refuse(**options: Any) -> None:
        raise RuntimeError("no account")

    module.told.init = refuse
    with pytest.raises(LeadlineError, match=f"--log-to {module.name} can't begin: no account"):
        train(config(log_to=module.name), tmp_path / "run")


def test_one_that_is_not_installed(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"log_to=wandb needs the package wandb: pip install 'leadline\[track\]'"):
        train(config(log_to="wandb"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_names() -> None:
    assert trackers_of("wandb, tensorboard,wandb") == ("wandb", "tensorboard")
    for text in ("mlflow", "", "wandb,"):
        with pytest.raises(UsageError, match=f"log_to={text}: .* is not known; tensorboard, wandb and trackio work"):
            RunConfig.of("prenorm", log_to=text)


def test_the_old_option(capsys: pytest.CaptureFixture[str]) -> None:
    found = parse(Arguments, ["prenorm", "--tensorboard", "--out", "o"], "leadline train")
    assert found.logging.log_to == "tensorboard"
    assert "--tensorboard is now --log-to tensorboard" in capsys.readouterr().err
    assert parse(Arguments, ["prenorm", "--no-tensorboard", "--out", "o"], "leadline train").logging.log_to is None
    assert options_of_run({"design": "prenorm", "tensorboard": True})["log_to"] == "tensorboard"
    assert "log_to" not in options_of_run({"design": "prenorm", "tensorboard": False})
