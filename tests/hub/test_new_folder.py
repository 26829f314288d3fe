"""A folder is new, empty or refused at once; what is written appears whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leadline.errors import LeadlineError, UsageError
from leadline.hub import new_folder
from leadline.hub.new_folder import check_new, placed


def write(out: Path) -> None:
    check_new(out)
    with placed(out, "new") as hidden:
        (hidden / "templates").mkdir(parents=True)
        (hidden / "config.json").write_text("{}")
        (hidden / "added.json").write_text("0")
        (hidden / "weights").write_text("1")
        (hidden / "templates" / "one").write_text("2")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


WHOLE = ["added.json", "config.json", "templates", "weights"]


def test_a_new_folder_and_those_above_it_are_made(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b")
    assert names(tmp_path / "a") == ["b"]
    assert names(tmp_path / "a" / "b") == WHOLE
    assert names(tmp_path / "a" / "b" / "templates") == ["one"]


@pytest.mark.parametrize("out", [".", "../here", ""])
def test_the_folder_where_the_user_is_stays_the_same_folder(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    number = here.stat().st_ino
    monkeypatch.chdir(here)
    write(Path(out))
    assert names(Path.cwd()) == WHOLE
    assert here.stat().st_ino == Path.cwd().stat().st_ino == number
    assert names(tmp_path) == ["here"]


@pytest.mark.parametrize("there", [True, False])
def test_what_a_link_names_is_written_and_the_link_stays(there: bool, tmp_path: Path) -> None:
    if there:
        (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "target") == WHOLE
    assert names(tmp_path) == ["link", "target"]


def test_what_cannot_be_a_new_folder_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=r"--out .*loop is a link that leads nowhere"):
        check_new(tmp_path / "loop")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="is a file; name a folder"):
            check_new(tmp_path / name)
    (tmp_path / "to").symlink_to(tmp_path)
    with pytest.raises(UsageError, match=r"--out .*to holds something already"):
        check_new(tmp_path / "to")


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("error", [LeadlineError("wrong"), KeyboardInterrupt()])
def test_an_error_leaves_nothing_behind(there: bool, error: BaseException, tmp_path: Path) -> None:
    if there:
        (tmp_path / "out").mkdir()

    def stop() -> None:
        with placed(tmp_path / "out", "new") as hidden:
            hidden.mkdir()
            (hidden / "config.json").write_text("{}")
            raise error

    with pytest.raises(type(error)):
        stop()
    assert names(tmp_path) == (["out"] if there else [])
    assert not there or names(tmp_path / "out") == []


def test_errors_name_the_folder_that_was_asked_for(tmp_path: Path) -> None:
    with (
        pytest.raises(LeadlineError) as caught,
        placed(tmp_path / "out", "new") as outer,
        placed(outer, "new") as inner,
    ):
        raise LeadlineError(f"{inner} is wrong")
    assert str(caught.value) == f"--out {tmp_path / 'out'} is wrong"


def test_files_that_came_meanwhile_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    def late() -> None:
        with placed(tmp_path / "out", "new") as hidden:
            hidden.mkdir()
            (hidden / "weights").write_text("new")
            (tmp_path / "out" / "weights").write_text("mine")

    with pytest.raises(LeadlineError, match=r"can't write --out .*out: Directory not empty"):
        late()
    assert names(tmp_path / "out") == ["weights"]
    assert (tmp_path / "out" / "weights").read_text() == "mine"


def test_a_move_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is there once its `config.json` is, which comes last."""
    replace, order = os.replace, []

    def failing(source: Path, target: Path) -> None:
        order.append(Path(target).name)
        if Path(target) == tmp_path / "config.json":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(new_folder.os, "replace", failing)
    with pytest.raises(LeadlineError, match=r"can't write --out .*No space left"):
        write(tmp_path)
    assert sorted(order[:3]) == ["added.json", "templates", "weights"]
    assert order[3] == "config.json"
    assert names(tmp_path) == []


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("ending", ["pruned", "partial"])
def test_what_a_killed_process_left_is_removed(there: bool, ending: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    place = out if there else tmp_path
    left = place / f".out.{dead_process()}.{ending}"
    others = [tmp_path / f".out.{os.getppid()}.{ending}", tmp_path / f".else.{left.name.split('.')[2]}.{ending}"]
    for folder in (left, *others):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text("half")
    write(out)
    assert names(out) == WHOLE
    assert names(tmp_path) == sorted(["out", *(folder.name for folder in others)])


def test_what_a_running_process_writes_stays(tmp_path: Path) -> None:
    mine = tmp_path / "out" / f".out.{os.getppid()}.pruned"
    mine.mkdir(parents=True)
    with pytest.raises(UsageError, match="holds something already"):
        write(tmp_path / "out")
    assert mine.is_dir()


def test_a_process_that_is_killed_while_it_writes(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from leadline.hub.new_folder import placed\n"
        "with placed(pathlib.Path(sys.argv[1]), 'pruned') as hidden:\n"
        "    hidden.mkdir()\n"
        "    (hidden / 'weights').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=False)
    assert killed.returncode == -9
    assert len(names(tmp_path)) == 1
    write(tmp_path / "out")
    assert names(tmp_path) == ["out"]
