"""A study's folder: one plan, one process, and nothing else in it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest

from leadline.errors import LeadlineError, UsageError
from leadline.experiments.folder import at_work


@dataclasses.dataclass(frozen=True)
class Plan:
    seeds: tuple[int, ...] = (0, 1)
    tokens: int = 100
    shape: dict[str, int] = dataclasses.field(default_factory=dict)


def test_the_same_plan_goes_on_and_another_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "new" / "study"
    with at_work(out, "toy", Plan()):
        assert json.loads((out / "study.json").read_text())["tokens"] == 100
        (out / "work").touch()
    with at_work(out, "toy", Plan()):
        assert (out / "work").exists()
    with pytest.raises(UsageError, match="tokens is 100 there and 200 here"), at_work(out, "toy", Plan(tokens=200)):
        pass
    with pytest.raises(UsageError, match="seeds 2 is 1 there and unset here"), at_work(out, "toy", Plan(seeds=(0,))):
        pass
    with (
        pytest.raises(UsageError, match="shape dim is unset there and 3 here"),
        at_work(out, "toy", Plan(shape={"dim": 3})),
    ):
        pass
    with pytest.raises(UsageError, match="study is toy there and other here"), at_work(out, "other", Plan()):
        pass


def test_what_is_no_study_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something that is no study"), at_work(tmp_path, "toy", Plan()):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(UsageError, match="is a file"), at_work(tmp_path / "mine.txt", "toy", Plan()):
        pass
    broken = tmp_path / "broken"
    broken.mkdir()
    for content in ("{", "[]", "[" * 5000, "\ud800"):
        (broken / "study.json").write_text(content, errors="surrogatepass")
        with (
            pytest.raises(LeadlineError, match=r"study\.json is damaged.*give another --out"),
            at_work(broken, "toy", Plan()),
        ):
            pass


def test_one_process_at_a_time_and_sigterm_is_ctrl_c(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with at_work(tmp_path, "toy", Plan()):
        with pytest.raises(LeadlineError, match="another leadline study is at work"), at_work(tmp_path, "toy", Plan()):
            pass
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
