"""Every file that a comparison reads again, damaged in every way that JSON can be: the same numbers, or an error."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leadline.cli.main import main
from leadline.config import from_dict
from leadline.data import DataSet
from leadline.errors import LeadlineError
from leadline.experiments.cascade.speed import SpeedOptions, measure_speed
from leadline.experiments.compare.config import CompareConfig
from leadline.experiments.compare.experiment import Compare
from leadline.experiments.folder import at_work
from leadline.experiments.runs import measured, read_run
from leadline.training import RunConfig, load_gradient, load_model, train
from leadline.training.run_folder import read_run_file

SMALL = "--blocks 2 --dim 24 --context 32 --batch-size 4 --jobs 1 --threads 1 --evaluations 2 --evaluate-tokens 256"
OPTIONS: dict[str, Any] = {"seeds": "1", "jobs": 1, "threads": 1, "blocks": 2, "dim": 24, "context": 32}
OPTIONS |= {"batch_size": 4, "evaluations": 2, "evaluate_tokens": 256, "steps": 4}
RECORDS = ("summary.json", "gradient.json", "probes.json", "evals.jsonl", "steps.jsonl")
WRONG: tuple[Any, ...] = ("x", None, True, [], {}, -1, 0.5, 10**30, {"a": [[]]})


def command(dataset: DataSet, out: Path, *more: str) -> list[str]:
    words = ["compare", "prenorm", "--data", str(dataset.folder), "--out", str(out), "--seeds", "1", "--steps", "4"]
    return [*words, *SMALL.split(), "--measure-tokens", "256", *more]


def comparison(dataset: DataSet, out: Path, **more: Any) -> Compare:
    """What `command` asks for."""
    config = CompareConfig(designs=("prenorm",), out=out)
    return Compare(config.replaced(data=str(dataset.folder), **OPTIONS, **more), dataset)


@pytest.fixture(scope="module")
def compared(dataset: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "out"
    assert main(command(dataset, out)) == 0
    return out


@pytest.fixture
def out(compared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compared, tmp_path / "out"))


def spoilt(content: bytes) -> Iterator[bytes]:
    """The content of a file of JSON, or of JSON lines, damaged in many ways; the same ones in every run."""
    text = content.decode()
    yield from (b"", b"{}", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"\0" * 9, b"[" * 3000, b'{"a":' * 3000)
    yield from (content[: len(content) // 2], content[len(content) // 2 :], content + content, content + b"}")
    yield from (text.encode("utf-16"), text.encode("utf-8-sig"), b'{"a": "\xe4"}', content[:-1] + b"\x0b" * 3)
    lines = text.splitlines(keepends=True)
    documents = [text] if len(lines) < 2 or not lines[0].startswith('{"') else lines
    places = [(number, place) for number, each in enumerate(documents) for place in _places(json.loads(each))]
    for number, place in random.Random(0).sample(places, min(30, len(places))):
        for wrong in (..., *random.Random(str(place)).sample(WRONG, 2)):
            changed = json.dumps(_with(json.loads(documents[number]), place, wrong)) + "\n"
            yield "".join([*documents[:number], changed, *documents[number + 1 :]]).encode()
    if len(documents) > 1:
        yield "".join(documents[1:]).encode()
        yield "".join(reversed(documents)).encode()


def _places(value: Any) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (key,)
        yield from ((key, *rest) for rest in _places(inner))


def _with(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    """A value with another one at a place; ... removes it."""
    outer = value
    for key in place[:-1]:
        outer = outer[key]
    if other is ...:
        del outer[place[-1]]
    else:
        outer[place[-1]] = other
    return value


def attempt(read: Callable[[], Any]) -> tuple[Any, str]:
    """What it gives, or what its error says; any other exception is a fault."""
    try:
        return read(), ""
    except LeadlineError as error:
        return None, str(error)


def same_or_error(path: Path, read: Callable[[], Any], same: Callable[[Any, Any], bool] | None = None) -> int:
    """Damages a file and reads it; gives how often that was an error."""
    content, right, errors = path.read_bytes(), read(), 0
    for number, other in enumerate(spoilt(content)):
        path.write_bytes(other)
        got, said = attempt(read)
        errors += bool(said)
        if said:
            assert path.name in said or str(path.parent) in said
        else:
            assert got == right if same is None else same(got, right), (number, other[:200])
    path.write_bytes(content)
    assert read() == right
    return errors


@pytest.mark.parametrize("sums", [True, False], ids=["checksums", "without"])
@pytest.mark.parametrize("name", RECORDS)
def test_records_of_a_run(out: Path, name: str, sums: bool) -> None:
    """Without checksums, as an earlier version left it, what is of the right type and fits the rest is believed."""
    folder = out / "runs" / "prenorm-seed0"
    if not sums:
        (folder / "checksums.json").unlink()

    def read() -> Any:
        run = read_run(folder)
        if run.status == "damaged":
            raise LeadlineError(str(run.error))
        return measured([run])

    assert same_or_error(folder / name, read, None if sums else lambda got, right: got["status"] == "ok") > 20


def test_descriptions(out: Path, dataset: DataSet) -> None:
    folder = out / "runs" / "prenorm-seed0"
    chosen = comparison(dataset, out, measure_tokens=256)

    def again() -> None:
        with at_work(out, chosen.kind, chosen.config, chosen.hashes):
            pass

    assert same_or_error(out / "experiment.json", again) > 20
    config = from_dict(RunConfig, json.loads((folder / "job.json").read_text())["config"])
    assert same_or_error(folder / "run.json", lambda: train(config, folder), lambda got, right: got == right) > 5
    assert same_or_error(folder / "run.json", lambda: read_run_file(folder), lambda got, right: "config" in got) > 5
    (folder / "failed.json").write_text('{"error": "no", "exit_code": 1}')
    assert same_or_error(folder / "failed.json", lambda: _failure(folder), lambda got, right: isinstance(got, str)) > 5


def _failure(folder: Path) -> str:
    run = read_run(folder)
    if run.status == "damaged":
        raise LeadlineError(str(run.error))
    return str(run.error)


def test_a_checkpoint(out: Path) -> None:
    folder = out / "runs" / "prenorm-seed0"
    (checkpoint,) = (folder / "checkpoints").iterdir()
    assert same_or_error(checkpoint / "gradient.json", lambda: load_gradient(checkpoint)) > 20
    assert same_or_error(checkpoint / "config.json", lambda: load_model(folder)[0].config) > 20
    (checkpoint / "checksums.json").unlink()
    kind = type(load_model(folder)[0].config)
    typed = same_or_error(
        checkpoint / "config.json", lambda: load_model(folder)[0].config, lambda got, right: isinstance(got, kind)
    )
    assert typed > 20


def test_speeds(out: Path, dataset: DataSet, tmp_path: Path) -> None:
    options = SpeedOptions(rounds=6, warm=1, group=2, batch=2, context=16, threads=1)
    path, folders = tmp_path / "speed.json", {"prenorm": out / "runs" / "prenorm-seed0"}

    def read() -> Any:
        return measure_speed(folders, dataset, options, path)

    read()
    (tmp_path / "checksums.json").unlink()
    content = path.read_bytes()
    for other in spoilt(content):
        path.write_bytes(other)
        kept, said = attempt(read)
        if said:
            assert path.name in said
        else:
            assert all(each > 0 for turns in kept["latency"].values() for each in turns)


def test_a_damaged_run_is_told_and_trained_again_on_request(
    out: Path, dataset: DataSet, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = out / "runs" / "prenorm-seed0"
    before = json.loads((out / "results.json").read_text())["arms"][0]
    (folder / "summary.json").write_text("{}")
    assert main(command(dataset, out)) == 1
    said = capsys.readouterr().out
    assert f"damaged: {folder}; the same command with --rerun trains it again" in said
    design = json.loads((out / "results.json").read_text())["arms"][0]
    assert (design["status"], design["bits_per_byte"]) == ("failed", None)
    assert "summary.json is damaged" in design["error"]
    assert "prenorm-seed0 is damaged" in (out / "report.html").read_text()
    assert ",damaged," in (out / "results.csv").read_text()
    assert main(command(dataset, out, "--rerun")) == 0
    after = json.loads((out / "results.json").read_text())
    assert (after["arms"][0]["loss"], after["arms"][0]["depth"]) == (before["loss"], before["depth"])
    assert "--rerun" not in after["command"]


def test_a_damaged_run_of_a_sweep_chooses_no_rate(out: Path, dataset: DataSet) -> None:
    chosen = comparison(dataset, out, sweep_lr=("1e-3,1e-2",))
    folders = [chosen.sweep_job(chosen.arms[0], rate).folder for rate in (1e-3, 1e-2)]
    for folder in folders:
        shutil.copytree(out / "runs" / "prenorm-seed0", folder)
    assert len(chosen.swept(chosen.arms[0])["points"]) == 2
    (folders[1] / "evals.jsonl").write_text("{}\n")
    with pytest.raises(LeadlineError, match=r"seed1-lr0\.01 is damaged: .*evals\.jsonl.*--rerun trains the run again"):
        chosen.swept(chosen.arms[0])


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\x93NUMPY\x01\x00", "flipped"], ids=["empty", "json", "torn", "flipped"]
)
def test_losses_of_sequences_that_are_damaged_are_no_others(out: Path, content: bytes | str) -> None:
    path = out / "runs" / "prenorm-seed0" / "heldout.npy"
    assert read_run(path.parent).sequences is not None
    whole = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else whole[:-2] + bytes([whole[-2] ^ 4]) + whole[-1:])
    found = read_run(path.parent)
    assert found.status == "damaged"
    assert "heldout.npy" in str(found.error)
