"""Checkpoints and records in which something was changed: the file is named, and nothing else comes out."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.errors import LeadlineError
from leadline.lock import alone
from leadline.models import saving
from leadline.training import load_gradient, load_model, train
from leadline.training.checkpoint import checkpoints, find_checkpoint

Lines = Callable[[Path], list[dict[str, Any]]]
NAMES = (
    "model.safetensors",
    "optimizer.safetensors",
    "config.json",
    "state.json",
    "gradient.json",
    "gradient_norms.safetensors",
)


@pytest.fixture
def run(config: Any, tmp_path: Path) -> Path:
    """A run of 6 steps that has all but its summary, with a checkpoint of each of the last two steps."""
    train(config(checkpoint_every=1), tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    return tmp_path / "run"


def back_to(run: Path, step: int) -> None:
    """As it was when that step was saved."""
    for path in checkpoints(run):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)


def flip(path: Path, where: float) -> None:
    """Another lowest bit in the byte at a share of the file."""
    content = bytearray(path.read_bytes())
    content[int(where * (len(content) - 1))] ^= 1
    path.write_bytes(content)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("where", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_flipped_bit_is_found(config: Any, run: Path, name: str, where: float) -> None:
    flip(find_checkpoint(run) / name, where)
    before = tree(run)
    with pytest.raises(LeadlineError, match=rf"step-00000006.*{name} is damaged.*--resume previous"):
        train(config(checkpoint_every=1), run)
    assert {**tree(run), "": b""} == {**before, "": b""}
    assert train(config(checkpoint_every=1), run, resume="previous").steps == 6


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "gradient.json"])
def test_a_flipped_bit_is_found_by_those_who_use_the_model(run: Path, name: str) -> None:
    flip(find_checkpoint(run) / name, 0.9)
    with pytest.raises(LeadlineError, match=rf"{name} is damaged"):
        load_gradient(find_checkpoint(run)) if name == "gradient.json" else load_model(run)


def test_checksums_are_of_every_file_and_may_be_missing(config: Any, run: Path, tmp_path: Path, lines: Lines) -> None:
    folder = find_checkpoint(run)
    assert set(json.loads((folder / "checksums.json").read_text())) == set(NAMES)
    for path in checkpoints(run):
        (path / "checksums.json").unlink()
    assert train(config(checkpoint_every=1), run).steps == 6
    (find_checkpoint(run) / "checksums.json").write_text("[")
    with pytest.raises(LeadlineError, match=r"checksums\.json is damaged"):
        load_model(run)


def test_a_model_saved_over_a_checkpoint_is_whole(run: Path, tmp_path: Path) -> None:
    model, _ = load_model(run)
    shutil.copytree(find_checkpoint(run), tmp_path / "copy")
    with torch.no_grad():
        model.embed.weight.add_(1)
    model.save(tmp_path / "copy")
    assert torch.equal(type(model).load(tmp_path / "copy").embed.weight, model.embed.weight)


EDITS: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("another step", lambda s: s.update(step=4), "it says step 4, and its folder step-00000005"),
    ("a step beyond", lambda s: s.update(step=10**9), "it says step 1000000000"),
    ("a step of words", lambda s: s.update(step="5"), "step should be int"),
    ("half a step", lambda s: s.update(step=5.0), "step should be int"),
    ("no step", lambda s: s.pop("step"), "lacks step"),
    ("negative time", lambda s: s.update(seconds=-1.0), "-1.0 seconds"),
    ("time in words", lambda s: s.update(seconds="long"), "seconds should be float"),
    ("another loss", lambda s: s.update(train_loss=1.0), "has another loss of step 5"),
    ("an endless loss", lambda s: s.update(train_loss=float("nan")), "is not a finite number"),
    ("another epoch", lambda s: s["loader"].update(epoch=3), "position in the data is not that of step 5"),
    ("another sequence", lambda s: s["loader"].update(index=0), "position in the data is not that of step 5"),
    ("another seed", lambda s: s["loader"].update(seed=8), "its state is of seed=8"),
    ("a place in words", lambda s: s["loader"].update(index="3"), "index should be int"),
    ("no place", lambda s: s.update(loader=[]), "loader should be a mapping"),
    ("other steps counted", lambda s: s["gradient"].update(seen=4), "that of other steps than 5"),
    ("more steps counted", lambda s: s["gradient"].update(steps=6), "that of other steps than 5"),
    ("sums in words", lambda s: s["gradient"].update(blocks=["a", "b"]), "gradient.blocks"),
    ("sums of another model", lambda s: s["gradient"].update(blocks=[1.0]), "unlike lengths"),
    ("counts of another model", lambda s: s["gradient"].update(blocks_missing=[0]), "unlike lengths"),
    ("no sums", lambda s: s["gradient"].pop("sublayers"), "lacks sublayers"),
    ("sums nested", lambda s: s.update(gradient=[[]]), "gradient should be a mapping"),
]


@pytest.mark.parametrize(("edit", "said"), [edit[1:] for edit in EDITS], ids=[edit[0] for edit in EDITS])
def test_an_edited_state_of_an_old_checkpoint(config: Any, run: Path, edit: Callable[[Any], Any], said: str) -> None:
    """Without checksums, as an earlier version wrote it: what it says is held against the folder and the records."""
    back_to(run, 5)
    folder = find_checkpoint(run)
    (folder / "checksums.json").unlink()
    state = json.loads((folder / "state.json").read_text())
    edit(state)
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(LeadlineError, match=rf"(?s).*{re.escape(said)}") as caught:
        train(config(checkpoint_every=1), run)
    assert "step-00000005" in str(caught.value) or "the checkpoint of step 5" in str(caught.value)


@pytest.mark.parametrize("name", ["steps.jsonl", "evals.jsonl", "depth.jsonl"])
@pytest.mark.parametrize("line", [b"", b"\xff\xfe", b"[]", b"{", b'{"step": "2"}', b'{"step": 900}', b"[" * 5000])
def test_a_bad_line_in_the_middle_stays_and_is_named(config: Any, tmp_path: Path, name: str, line: bytes) -> None:
    chosen = config(record_every=1, evaluate_every=1)
    train(chosen, tmp_path)
    (tmp_path / "summary.json").unlink()
    before = (tmp_path / name).read_bytes().split(b"\n")
    (tmp_path / name).write_bytes(b"\n".join([*before[:2], line, *before[2:]]))
    content = (tmp_path / name).read_bytes()
    with pytest.raises(LeadlineError, match=rf"{name}, line [34] is damaged"):
        train(chosen, tmp_path)
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize("torn", [b'{"step": 6, "lo', b"\xff\xfe", b"\0" * 40, b'{"step": 9}'])
def test_half_a_line_at_the_end_is_dropped(config: Any, run: Path, lines: Lines, torn: bytes) -> None:
    before = lines(run / "steps.jsonl")
    with open(run / "steps.jsonl", "ab") as file:
        file.write(torn)
    train(config(checkpoint_every=1), run)
    assert lines(run / "steps.jsonl") == before


def test_records_that_end_before_the_checkpoint(config: Any, run: Path) -> None:
    back_to(run, 5)
    kept = (run / "steps.jsonl").read_text().splitlines(keepends=True)
    for some, said in ((kept[:3], "ends at step 3"), ([], "ends at step 0")):
        (run / "steps.jsonl").write_text("".join(some))
        with pytest.raises(LeadlineError, match=rf"doesn't fit the checkpoint of step 5: it {said}"):
            train(config(checkpoint_every=1), run)
    (run / "steps.jsonl").unlink()
    assert train(config(checkpoint_every=1), run).steps == 6


def test_two_at_once_in_one_folder(config: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with alone(tmp_path / "run", "train"), pytest.raises(LeadlineError, match="another leadline train is at work"):
        train(config(), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]

    def second(told: dict[str, Any]) -> None:
        with pytest.raises(LeadlineError, match="another leadline train is at work"):
            train(config(), tmp_path / "run")

    assert train(config(), tmp_path / "run", on_step=second).steps == 6


def test_the_folder_is_deleted_while_it_trains(config: Any, tmp_path: Path) -> None:
    """Also where another one of that name is made; moved elsewhere it is no longer there either."""
    out = tmp_path / "run"

    def delete(told: dict[str, Any]) -> None:
        if told["step"] == 3:
            shutil.rmtree(out)

    with pytest.raises(LeadlineError, match=r"steps\.jsonl was removed or replaced while the run went on"):
        train(config(checkpoint_every=4), out, on_step=delete)
    assert not out.exists()

    def move(told: dict[str, Any]) -> None:
        if told["step"] == 6:
            out.rename(tmp_path / "elsewhere")
            out.mkdir()

    with pytest.raises(LeadlineError, match="was removed or replaced"):
        train(config(), out, on_step=move)
    assert not list(out.iterdir())

    def forget(told: dict[str, Any]) -> None:
        (tmp_path / "third" / "run.json").unlink(missing_ok=True)

    with pytest.raises(LeadlineError, match=r"run\.json was removed"):
        train(config(), tmp_path / "third", on_step=forget)


def test_tensors_are_read_one_at_a_time(config: Any, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the next is read, nothing of the file is mapped any more, so it never stands in memory beside its copy."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("the system doesn't tell what is mapped")
    opened: list[str] = []
    real = saving.safe_open

    @contextlib.contextmanager
    def watched(path: Path, **options: Any) -> Iterator[Any]:
        assert str(path) not in maps.read_text()
        with real(path, **options) as file:
            opened.append(os.path.basename(path))
            yield file

    monkeypatch.setattr(saving, "safe_open", watched)
    train(config(checkpoint_every=1), run)
    model, optimiser = (len(saving.shapes_in(find_checkpoint(run) / name)) for name in NAMES[:2])
    assert opened.count(NAMES[0]) >= model
    assert opened.count(NAMES[1]) >= optimiser > model
