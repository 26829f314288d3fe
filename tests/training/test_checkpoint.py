"""Checkpoints and run folders that are damaged, full, or someone else's."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.errors import LeadlineError, UsageError
from leadline.training import load_model, train
from leadline.training.checkpoint import checkpoints, find_checkpoint

Lines = Callable[[Path], list[dict[str, Any]]]
REST = {"dim": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 12}


@pytest.fixture
def run(config: Any, tmp_path: Path) -> Path:
    """A finished run with checkpoints of steps 4 and 6."""
    train(config("bhyt", checkpoint_every=2), tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    return tmp_path / "run"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_checkpoint_is_a_model(run: Path) -> None:
    assert [path.name for path in checkpoints(run)] == ["step-00000004", "step-00000006"]
    names = {path.name for path in checkpoints(run)[-1].iterdir()}
    kept = {"model.safetensors", "config.json", "optimizer.safetensors", "state.json", "gradient.json"}
    assert names == {*kept, "gradient_norms.safetensors", "checksums.json"}
    newest, tokenizer = load_model(run)
    older, _ = load_model(run, checkpoint=4)
    assert tokenizer.name == "bytes"
    assert not newest.training
    assert not torch.equal(newest.embed.weight, older.embed.weight)


def test_no_such_checkpoint(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint of step 5; it has 4, 6"):
        load_model(run, checkpoint=5)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UsageError, match="holds no checkpoint yet"):
        load_model(run)
    with pytest.raises(UsageError, match="is not a run's folder"):
        load_model(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", [cut, Path.unlink], ids=["cut", "missing"])
def test_a_damaged_checkpoint(config: Any, run: Path, name: str, damage: Callable[[Path], None]) -> None:
    chosen = config("bhyt", checkpoint_every=2)
    damage(find_checkpoint(run) / name)
    with pytest.raises(LeadlineError, match=rf"step-00000006.*{name}.*--resume previous") as caught:
        train(chosen, run)
    assert "\n" not in str(caught.value)
    summary = train(chosen, run, resume="previous")
    assert summary.steps == 6
    load_model(run)


@pytest.mark.parametrize(
    "content", ["[]", "{}", "3", '{"step": 6, "seconds": 1, "train_loss": 1, "loader": {}, "gradient": {}}']
)
def test_a_state_that_is_something_else(config: Any, run: Path, content: str) -> None:
    (find_checkpoint(run) / "state.json").write_text(content)
    with pytest.raises(LeadlineError, match="step-00000006"):
        train(config("bhyt", checkpoint_every=2), run)


def test_no_checkpoint_before_a_damaged_one(config: Any, run: Path) -> None:
    shutil.rmtree(checkpoints(run)[0])
    cut(find_checkpoint(run) / "model.safetensors")
    with pytest.raises(LeadlineError, match="start in another folder"):
        train(config("bhyt"), run)
    with pytest.raises(UsageError, match=r"--resume previous: .* has 1 of the 2"):
        train(config("bhyt"), run, resume="previous")


def test_a_damaged_run_file(config: Any, run: Path) -> None:
    for content in ("{", "[]"):
        (run / "run.json").write_text(content)
        with pytest.raises(LeadlineError, match=r"run\.json"):
            train(config("bhyt"), run)


def test_a_damaged_summary(config: Any, run: Path) -> None:
    (run / "summary.json").write_text('{"loss": 1}')
    with pytest.raises(LeadlineError, match=r"summary\.json is damaged: .* remove it"):
        train(config("bhyt"), run)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"design": "prenorm"}, "--design bhyt, not prenorm"),
        ({"lr": 0.02}, "--lr 0.01, not 0.02"),
        ({"seed": 3}, "--seed 0, not 3"),
        ({"clip": None}, "--clip 1.0, not unset"),
        ({"steps": 7}, "--tokens 192, not 224"),
        ({"shape": {"blocks": 3, **REST}}, "--blocks 2, not 3"),
        ({"shape": REST}, "--blocks 2, not 24"),
        ({"precision": "bfloat16"}, "--precision float32, not bfloat16"),
    ],
)
def test_another_configuration(config: Any, run: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"holds a run with {message}"):
        train(config(**{"design": "bhyt", **fields}), run)


def test_options_that_may_change(config: Any, run: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "moved")
    changed = config("bhyt").replaced(keep=1, checkpoint_every=1, data=str(tmp_path / "moved"))
    assert train(changed, run).steps == 6


def test_other_data(config: Any, run: Path, tmp_path: Path) -> None:
    from leadline.data import prepare

    (tmp_path / "other").mkdir()
    for number in range(2):
        (tmp_path / "other" / f"{number}.txt").write_text("Something else altogether. " * 10)
    prepare([tmp_path / "other"], tmp_path / "set", heldout_last=1)
    with pytest.raises(UsageError, match="a run on other data"):
        train(config("bhyt").replaced(data=str(tmp_path / "set")), run)


def test_never_resume(config: Any, run: Path) -> None:
    with pytest.raises(UsageError, match=r"--resume never: .* holds a run already"):
        train(config("bhyt"), run, resume="never")


def test_a_folder_of_something_else(config: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="holds something that is not a Leadline run"):
        train(config(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_out_is_a_file_or_cannot_be_made(config: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(LeadlineError, match=f"--out {out}"):
            train(config(), out)


def test_bad_usage_leaves_no_folder(config: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        train(config(device="abacus"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def full(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("name", ["write_tensors", "write_json", "write_model"])
def test_a_full_disk_at_a_checkpoint(
    config: Any, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    chosen = config(checkpoint_every=2)
    train(chosen, tmp_path / "whole")
    with monkeypatch.context() as patch:

        def fill_up(told: dict[str, Any]) -> None:
            if told["step"] == 4:
                patch.setattr(f"leadline.training.checkpoint.{name}", full)

        with pytest.raises(LeadlineError, match=r"can't write the checkpoint .*step-00000004: .*No space left"):
            train(chosen, tmp_path / "full", on_step=fill_up)
    assert [path.name for path in (tmp_path / "full" / "checkpoints").iterdir()] == ["step-00000002"]
    train(chosen, tmp_path / "full")
    assert lines(tmp_path / "full" / "steps.jsonl") == lines(tmp_path / "whole" / "steps.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_at_a_record(config: Any, tmp_path: Path) -> None:
    from leadline.training.records import Lines as Records

    records = Records(tmp_path / "steps.jsonl", 0)
    records._file.close()
    records._file = open("/dev/full", "a", buffering=1)  # noqa: SIM115
    with pytest.raises(LeadlineError, match=r"can't write .*steps\.jsonl: No space left"):
        records.add({"step": 1})
    records.close()


def test_a_full_disk_at_the_end(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("leadline.training.loop.write_json", full)
        with pytest.raises(LeadlineError, match="can't write the summary into"):
            train(config(), tmp_path)
    assert train(config(), tmp_path).steps == 6


def test_what_a_kill_left_is_cleaned_up(config: Any, tmp_path: Path) -> None:
    stray = tmp_path / "checkpoints" / ".step-00000003.partial"
    train(config(steps=1), tmp_path)
    stray.mkdir()
    (tmp_path / "summary.json").unlink()
    shutil.rmtree(find_checkpoint(tmp_path))
    train(config(steps=1), tmp_path)
    assert not stray.exists()


def test_only_so_many_are_kept(config: Any, tmp_path: Path) -> None:
    train(config(checkpoint_every=1, keep=3), tmp_path)
    assert [path.name[-1] for path in checkpoints(tmp_path)] == ["4", "5", "6"]


def test_files_are_as_readable_as_others(config: Any, tmp_path: Path) -> None:
    train(config(steps=1), tmp_path)
    mask = os.umask(0)
    os.umask(mask)
    for path in find_checkpoint(tmp_path).iterdir():
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask
        assert path.suffix in (".json", ".safetensors")
        if path.suffix == ".json":
            json.loads(path.read_text())
