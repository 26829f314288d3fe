"""What a terminal can't print, and what libraries say: neither is the user's trouble."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from leadline.cli import env
from leadline.cli.main import VERBS, main
from leadline.cli.terminal import as_option
from leadline.errors import UsageError

MAIN = [sys.executable, "-m", "leadline.cli.main"]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
@pytest.mark.parametrize("words", [("designs", "mgr"), ("designs", "cascade-a2", "--equal", "prenorm"), ("--help",)])
def test_characters_that_an_encoding_lacks_are_replaced(words: tuple[str, ...], encoding: str, tmp_path: Path) -> None:
    target = tmp_path / "also.json"
    more = () if words == ("--help",) else ("--json", str(target))
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([*MAIN, *words, *more], capture_output=True, env=environment, timeout=240)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding)
    assert not more or target.is_file()


@pytest.mark.parametrize("verb", [*VERBS, "data prepare"])
def test_help_in_ascii(verb: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*MAIN, *verb.split(), "--help"], capture_output=True, env=environment, timeout=240)
    assert (done.returncode, done.stderr) == (0, b"")


def test_signs_have_stand_ins() -> None:
    code = "from leadline.cli.terminal import make_printable; make_printable(); print('28\\u00a0% −1 2× → “”')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=240, check=True)
    assert done.stdout == b"28 % -1 2x -> ??\n"


@pytest.mark.parametrize("shown", [False, True], ids=["by itself", "asked for"])
def test_warnings_of_transformers_are_not_for_the_user(
    shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of Leadline's own nothing is lost."""
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "warning")
    if not shown:
        monkeypatch.delenv("TRANSFORMERS_VERBOSITY")

    def run(arguments: object) -> int:
        warnings.warn_explicit("flags may be ignored", UserWarning, "x.py", 1, module="transformers.generation.utils")
        warnings.warn_explicit("read this", UserWarning, "y.py", 1, module="leadline.training.loop")
        return 0

    monkeypatch.setattr(env, "run", run)
    assert main(["env"]) == 0
    assert os.environ["TRANSFORMERS_VERBOSITY"] == ("warning" if shown else "error")
    said = capsys.readouterr().err
    assert ("flags may be ignored" in said) == shown
    assert "leadline: warning: read this" in said


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("batch_size=0 is too small; 1 or more work", "--batch-size 0 is too small; 1 or more work"),
        ("streams=8 needs more sublayers", "streams=8 needs more sublayers"),
        ("mgr: batch_size=8 is none of its options", "mgr: batch_size=8 is none of its options"),
    ],
)
def test_a_field_that_an_error_begins_with_is_named_as_its_option(raised: str, said: str) -> None:
    @dataclasses.dataclass
    class Arguments:
        batch_size: int = 1

    assert str(as_option(UsageError(raised), Arguments())) == said
