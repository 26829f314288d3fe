"""Dispatch, exit codes, one line on standard error, and a quick start."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import inspect
import os
import re
import resource
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from leadline import __version__
from leadline.cli import main as entry
from leadline.cli.main import VERBS, main
from leadline.cli.options import each_dataclass
from leadline.errors import LeadlineError, UsageError
from leadline.progress import StatusLine, note, verbose, verbosity

QUICK = 0.7
ONE_LINE = 104
HEAVY = ("torch", "numpy", "matplotlib", "safetensors", "tokenizers", "jinja2")
MAIN = [sys.executable, "-m", "leadline.cli.main"]
HELP = [("--help",), *((verb, "--help") for verb in VERBS), ("data", "prepare", "--help")]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MAIN, *arguments], capture_output=True, text=True, timeout=240)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`failing(error)` makes the verb `env` raise it."""

    def make(error: BaseException) -> None:
        def run(arguments: Any) -> int:
            raise error

        import leadline.cli.env

        monkeypatch.setattr(leadline.cli.env, "run", run)

    return make


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("--lr 0 is out of range"), 2, "leadline: error: --lr 0 is out of range\n"),
        (LeadlineError("the disk is full"), 1, "leadline: error: the disk is full\n"),
        (KeyboardInterrupt(), 130, "leadline: interrupted\n"),
        (OSError(errno.EACCES, "Permission denied", "runs/x"), 1, "leadline: error: runs/x: Permission denied\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "leadline: error: No space left on device\n"),
    ],
)
def test_errors_are_one_line_and_a_code(
    failing: Any, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    failing(error)
    assert main(["env"]) == code
    assert capsys.readouterr() == ("", said)


def test_a_traceback_when_asked(failing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEADLINE_DEBUG", "1")
    failing(LeadlineError("the disk is full"))
    with pytest.raises(LeadlineError, match="the disk is full"):
        main(["env"])


def test_a_bug_is_not_hidden(failing: Any) -> None:
    failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["env"])


def test_no_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr() == ("", entry.overview() + "\n")


@pytest.mark.parametrize(("verb", "nearest"), [("trian", "train"), ("compares", "compare"), ("design", "designs")])
def test_an_unknown_verb(capsys: pytest.CaptureFixture[str], verb: str, nearest: str) -> None:
    assert main([verb]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"leadline: error: unknown verb '{verb}'; known: compare, train,")
    assert f"Did you mean {nearest}" in said.err
    assert said.err.count("\n") == 1


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "-h", "help"):
        assert main([flag]) == 0
        out = capsys.readouterr().out
        assert all(f"  {verb} " in out for verb in VERBS)
        assert "Example: leadline compare" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--version", "-V"):
        assert main([flag]) == 0
        assert capsys.readouterr().out == f"leadline {__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_helps_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: leadline {verb}" in out
    assert f"Example: leadline {verb}" in out
    assert "(default: )" not in out


def test_help_below_a_verb_shows_no_empty_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "--help"]) == 0
    assert "(default: )" not in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_what_it_does_not_know(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--no-such-option", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no-such-option" in said.err or "Missing argument" in said.err
    assert f"leadline {verb} --help" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_is_quick(words: tuple[str, ...]) -> None:
    """In seconds of the processor, because the machine may be busy with other tests; the least of three."""
    assert min(processor_seconds(words) for _ in range(3)) < QUICK


def processor_seconds(words: tuple[str, ...]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert command(*words).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from leadline.cli.main import main
for words in {HELP!r}:
    main(list(words))
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("words", [("--out", ""), ("--out=",), ("--data", "sotu", "--out", "")])
def test_an_empty_place_is_no_place(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "prenorm", *words]) == 2
    assert "--out is empty; name a place" in capsys.readouterr().err


def test_a_reader_that_left() -> None:
    process = subprocess.Popen([*MAIN, "designs"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait(timeout=240)
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_output_onto_a_full_disk() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*MAIN, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=240)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_code_of_a_verb_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(entry.VERBS, "wink", "for this test")
    module = types.ModuleType("leadline.cli.wink")
    monkeypatch.setitem(sys.modules, "leadline.cli.wink", module)
    module.Arguments = dataclasses.make_dataclass("Arguments", [])
    module.run = lambda parsed: 1
    assert main(["wink"]) == 1


BELOW = [("study", "gfa"), ("study", "cascade"), ("study", "pruning"), ("bench", "ops"), ("data", "prepare")]


@pytest.mark.parametrize("words", [*((verb,) for verb in VERBS), *BELOW], ids=" ".join)
def test_help_shows_no_none(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Of an option that is None unless given: neither among its values nor as its default."""
    assert main([*words, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "{None}" not in out
    assert "(default: None)" not in out


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_an_option_is_one_line(verb: str) -> None:
    """In one column a line has about a hundred characters for it."""
    arguments = importlib.import_module(f"leadline.cli.{verb}").Arguments
    long = [
        f"{each.__name__}: {text}"
        for each in {part for found in each_dataclass(arguments) for part in found.__mro__}
        if dataclasses.is_dataclass(each)
        for text in re.findall(r'^    r?"""(.*?)"""$', inspect.getsource(each), re.DOTALL | re.MULTILINE)[1:]
        if len(" ".join(text.split())) > ONE_LINE
    ]
    assert not long


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("tr", "train"),
        ("train --sch", "--schedule"),
        ("train --schedule w", "wsd"),
        ("study g", "gfa"),
        ("study gfa --ar", "--arms"),
    ],
)
def test_bash_completes(words: str, completed: str, tmp_path: Path) -> None:
    script = tmp_path / "leadline.bash"
    script.write_text(command("completion", "bash").stdout)
    lines = f"""
        source {script}
        COMP_WORDS=(leadline {words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        _tyro_leadline leadline "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
        echo "${{COMPREPLY[@]}}"
    """
    assert subprocess.run(["bash", "-c", lines], capture_output=True, text=True).stdout.strip() == completed


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str) -> None:
    said = command("completion", shell)
    assert said.returncode == 0
    assert "gradient-definition" in said.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "--contxt", "16"), "--contxt is not an option of leadline train. Did you mean --context"),
        (("study", "gfa", "--blok", "3"), "--blok is not an option of leadline study gfa. Did you mean --blocks"),
        (("train", "prenorm", "--compile", "true"), "--compile takes no value, and 'true' is given; --compile is on"),
        (("train", "prenorm", "--compile=yes"), "--compile takes no value, and 'yes' is given"),
        (("train", "prenorm", "--no-compile", "1"), "--no-compile is off"),
        (("train", "prenorm", "--batch_sise", "4"), "Did you mean --batch-size"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_the_wrong_word_is_named_before_anything_that_is_missing(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("leadline: error: ")
    assert said in err


def environment(**changes: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name != "NO_COLOR"}, **changes}


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("words", [("designs",), ("prune", "--help"), ("data", "--help")], ids=" ".join)
def test_a_terminal_without_all_characters(encoding: str, words: tuple[str, ...]) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "leadline", *words], env=environment(PYTHONIOENCODING=encoding), capture_output=True
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout


def test_no_colour_where_none_is_wanted() -> None:
    """In a terminal of its own, since the parser writes colours only there."""
    import pty

    def shown(**changes: str) -> bytes:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "leadline", "train", "--help"],
            env=environment(TERM="xterm", **changes),
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        found = b""
        with contextlib.suppress(OSError):  # the end of a terminal that nobody writes to any more
            while part := os.read(ours, 65536):
                found += part
        process.wait()
        os.close(ours)
        return found

    assert b"\x1b[" in shown()
    plain = shown(NO_COLOR="1")
    assert b"--batch-size" in plain
    assert b"\x1b[" not in plain


def test_quiet_and_verbose(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr("leadline.cli.designs.run", lambda parsed: seen.append(verbosity()) or 0)
    for words in (["designs"], ["designs", "-q"], ["designs", "--quiet"], ["designs", "-v"], ["designs", "--verbose"]):
        assert main(words) == 0
    assert seen == [0, -1, -1, 1, 1]
    assert main(["designs", "-q", "-v"]) == 2
    assert "--quiet and --verbose are opposites" in capsys.readouterr().err
    assert main(["compare", "--data", "soto", "-v"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert "leadline: error: --data soto" in said.splitlines()[-1]


def test_a_quiet_line_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with verbose(-1):
        line = StatusLine()
        line("a")
        line.keep("b")
        note("c")
    assert capsys.readouterr().err == ""
    with verbose(1):
        line = StatusLine()
        line("a")
        line("b")
    assert capsys.readouterr().err == "a\nb\n"
