"""An experiment's folder: one configuration, one process, and nothing else in it."""

from __future__ import annotations

import json
import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from leadline.errors import LeadlineError, UsageError
from leadline.experiments.folder import at_work
from leadline.experiments.options import ExperimentConfig

HASHES = {"data": "12ab"}


def working(out: Path, kind: str = "toy", hashes: dict[str, str] = HASHES, **more: Any) -> AbstractContextManager[None]:
    return at_work(out, kind, ExperimentConfig().replaced(**{"tokens": 100, **more}), hashes)


def test_the_same_experiment_resumes_and_another_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "new" / "study"
    with working(out):
        assert json.loads((out / "experiment.json").read_text())["config"]["data"]["tokens"] == 100
        (out / "work").touch()
    with working(out, jobs=3, threads=1, rerun=True):
        assert (out / "work").exists(), "what decides nothing may differ"
    for more, message in (
        ({"tokens": 200}, "tokens is 100 there and 200 here"),
        ({"seeds": "2"}, "seeds is 3 there and 2 here"),
        ({"dim": 4}, "dim is None there and 4 here"),
        ({"kind": "other"}, "experiment is toy there and other here"),
        ({"hashes": {"data": "34cd"}}, "hashes data is 12ab there and 34cd here"),
    ):
        with pytest.raises(UsageError, match=message), working(out, **more):
            pass


def test_options_that_came_later_had_their_default(tmp_path: Path) -> None:
    with working(tmp_path):
        pass
    path = tmp_path / "experiment.json"
    content = json.loads(path.read_text())
    del content["config"]["schedule"]["extended"], content["config"]["runtime"]["two_phase"]
    path.write_text(json.dumps(content))
    with working(tmp_path):
        pass
    with pytest.raises(UsageError, match="two phase is False there and True here"), working(tmp_path, two_phase=True):
        pass


def test_what_is_no_experiment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something that is not an experiment"), working(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(UsageError, match="is a file"), working(tmp_path / "mine.txt"):
        pass
    broken = tmp_path / "broken"
    broken.mkdir()
    for content in ("{", "[]", "[" * 5000, "\ud800"):
        (broken / "experiment.json").write_text(content, errors="surrogatepass")
        with pytest.raises(LeadlineError, match=r"experiment\.json is damaged.*give another --out"), working(broken):
            pass


@pytest.mark.parametrize("name", ["compare.json", "study.json"])
def test_an_experiment_of_an_earlier_version_says_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match=r"of an earlier version, which can't be resumed.* Name a new folder"):
        working(tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_one_process_at_a_time_and_sigterm_is_ctrl_c(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with working(tmp_path):
        with pytest.raises(LeadlineError, match="another leadline toy is at work"), working(tmp_path):
            pass
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
