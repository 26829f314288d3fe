"""One process at a time in a folder, whatever lies where the lock should be."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from leadline.errors import LeadlineError
from leadline.lock import alone, claimed


def test_a_second_one_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    with (
        alone(tmp_path, "train"),
        pytest.raises(LeadlineError, match="another leadline train is at work in --out"),
        alone(tmp_path, "train"),
    ):
        pass
    with alone(tmp_path, "train"):
        pass


def test_a_patient_one_waits(tmp_path: Path) -> None:
    entered, done = threading.Event(), []

    def first() -> None:
        with alone(tmp_path, "train"):
            entered.set()
            time.sleep(0.3)
            done.append(1)

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with alone(tmp_path, "train", patience=60):
        assert done
    thread.join()


def test_a_link_is_not_followed_and_no_file_is_emptied(tmp_path: Path) -> None:
    out, keep = tmp_path / "out", tmp_path / "keep.txt"
    out.mkdir()
    keep.write_text("keep me")
    (out / ".lock").symlink_to("../keep.txt")
    with pytest.raises(LeadlineError, match=r"\.lock is not an ordinary file; remove it"), alone(out, "compare"):
        pass
    assert keep.read_text() == "keep me"
    (out / ".lock").unlink()
    (out / ".lock").write_text("a note")
    with alone(out, "compare"):
        pass
    assert (out / ".lock").read_text() == "a note"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_refused(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / ".lock")
    with pytest.raises(LeadlineError, match=r"\.lock is not an ordinary file"), alone(tmp_path, "train"):
        pass


def test_nothing_is_made_where_the_check_fails(tmp_path: Path) -> None:
    def check() -> None:
        raise LeadlineError("no")

    with pytest.raises(LeadlineError, match="no"), claimed(tmp_path / "out", "train", check):
        pass
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(LeadlineError, match="cannot be written"), claimed(tmp_path / "file", "train", lambda: None):
        pass
