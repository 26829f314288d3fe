"""`leadline train`: its options become a run, and it says how far the run is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from leadline.cli import study
from leadline.cli.main import main
from leadline.cli.options import parse
from leadline.cli.train import Arguments, Progress, plan_lines, progress
from leadline.data import prepare
from leadline.errors import UsageError
from leadline.experiments.compare.config import CompareConfig
from leadline.report.words import duration
from leadline.training import RunConfig
from leadline.training.resolve import decide


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for number in range(2):
        (folder / f"{number}.txt").write_text("By the deep, six! By the mark, seven! " * 8)
    prepare([folder], folder / "set", heldout_last=1)
    return folder / "set"


def small(data: Path, out: Path, *more: str) -> list[str]:
    words = ["train", "mgr(streams=2)", "--data", str(data), "--out", str(out), "--blocks", "2", "--context", "16"]
    return [*words, "--batch-size", "2", *more]


def test_a_run(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(small(data, tmp_path / "run", "--steps", "3", "--json", str(tmp_path / "said.json"))) == 0
    said = capsys.readouterr()
    assert said.out.startswith("mgr(streams=2): ")
    assert "96 tokens" in said.out
    assert "parameters" in said.out
    assert "FLOPs a token" in said.out
    length, evaluations, first, *_ = said.err.splitlines()
    assert length == "3 steps of 32 tokens"
    assert evaluations == "an evaluation every step, on 16 held-out tokens of 304 (--evaluate-tokens sets how many)"
    assert first.startswith("step 1/3  loss 5.")
    evals = [json.loads(line) for line in (tmp_path / "run" / "evals.jsonl").read_text().splitlines()]
    assert [line for line in said.err.splitlines() if "held-out loss" in line] == [
        f"step {e['step']}  held-out loss {e['loss']:.4f}  {e['bits_per_byte']:.4f} bits per byte" for e in evals
    ]
    assert said.err.splitlines()[-2].startswith("step 3/3  0 s left  loss 4.")
    assert json.loads((tmp_path / "said.json").read_text()) == json.loads(
        (tmp_path / "run" / "summary.json").read_text()
    )


def test_a_note(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = small(data, tmp_path / "run", "--tokens", "32")
    words[1] = "attnres + bhyt"
    assert main(words) == 0
    assert "note: BHyT's norm before the MLP is exact here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--steps", "3", "--tokens", "1k"), "--tokens 1000 and --steps 3 both say"),
        (("--steps", "some"), "--steps 'some' is not a count"),
        (("--tokens", "1.00001"), "--tokens '1.00001' is not a whole number"),
        (("--evaluate-tokens", "few"), "--evaluate-tokens 'few'"),
        (("--lr", "-1"), "--lr -1"),
        (("--preset", "tini"), "Did you mean tiny"),
        (("--grad-accumulation", "3"), "--grad-accumulation 3"),
        (("--data", "sotuu"), "Did you mean sotu"),
        (("--device", "abacus"), "--device abacus"),
        (("--momentum", "0.5"), "--momentum 0.5 does nothing without --optimizer sgd; give both"),
        (("--exit-every", "2"), "--exit-every 2 does nothing without --exit-loss 1"),
        (("--config", "nowhere.toml"), "--config nowhere.toml can't be read"),
    ],
)
def test_bad_options(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    assert main(small(data, tmp_path / "run", *more)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def read(*words: str) -> Arguments:
    return parse(Arguments, ["mgr", "--out", "run", *words], "leadline train")


def test_options_reach_the_run() -> None:
    """The command line reads the configuration itself, section by section."""
    config = read(
        *["--tokens", "4k", "--lr", "0.5", "--blocks", "3", "--batch-size", "7", "--clip", "None", "--schedule", "wsd"],
        *["--decay-embeddings", "--evaluate-tokens", "1k", "--final-fraction", "0", "--seed", "0"],
    )
    assert (config.data.tokens, config.optimizer.lr, config.model.shape) == (4000, 0.5, {"blocks": 3})
    assert (config.data.batch_size, config.optimizer.clip, config.schedule.schedule) == (7, None, "wsd")
    assert (config.optimizer.decay_embeddings, config.logging.evaluate_tokens) == (True, 1000)
    assert config.schedule.final_fraction == 0.0
    plain = read()
    assert RunConfig(design=plain.design, seed=plain.seed, **plain.sections()) == RunConfig.of("mgr")


def test_old_spellings_work_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    config = read("--recompute", "--accumulation", "4")
    assert (config.runtime.activation_checkpointing, config.data.grad_accumulation) == (True, 4)
    assert capsys.readouterr().err == (
        "leadline: warning: --recompute is now --activation-checkpointing; the old name goes in the next version\n"
        "leadline: warning: --accumulation is now --grad-accumulation; the old name goes in the next version\n"
    )
    asked = ["prenorm", "lns", "--lr", "lns=1e-3,prenorm=2e-3"]
    assert parse(CompareConfig, asked, "leadline compare").rates == "lns=1e-3,prenorm=2e-3"
    assert "--lr is now --rates" in capsys.readouterr().err
    assert parse(CompareConfig, ["--lr", "1e-3"], "leadline compare").optimizer.lr == 0.001
    assert not capsys.readouterr().err
    assert not read("--no-recompute").runtime.activation_checkpointing


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("flat.toml", 'tokens = 500\nclip = 0.5\nblocks = 3\nschedule = "wsd"\n'),
        (
            "nested.toml",
            '[data]\ntokens = 500\n[optimizer]\nclip = 0.5\n[model]\nblocks = 3\n[schedule]\nschedule = "wsd"',
        ),
        (
            "run.json",
            '{"config": {"design": "lns", "data": {"tokens": 500}, "clip": 0.5, "blocks": 3, "schedule": "wsd"}}',
        ),
    ],
)
def test_options_from_a_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    config = read("--config", str(tmp_path / name), "--blocks", "4")
    assert (config.data.tokens, config.optimizer.clip, config.schedule.schedule) == (500, 0.5, "wsd")
    assert config.model.blocks == 4, "the command line overrides the file"
    assert config.data.data == "sotu"
    assert config.design == "mgr"


def test_a_folder_repeats_its_run(data: Path, tmp_path: Path) -> None:
    assert main(small(data, tmp_path / "run", "--steps", "2", "--seed", "3", "--clip", "0.5")) == 0
    assert main(["train", "--config", str(tmp_path / "run"), "--out", str(tmp_path / "again")]) == 0
    first, again = (json.loads((tmp_path / name / "run.json").read_text())["config"] for name in ("run", "again"))
    assert again == first


def test_studies_take_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('seeds = "2"\nblocks = 3\n[early_exit]\nlayer_dropout = 0.5\n')
    words = ["gfa", "--config", str(tmp_path / "x.toml"), "--blocks", "4"]
    config = parse(study.Arguments, words, "leadline study").study
    assert (config.seeds, config.model.blocks, config.early_exit.layer_dropout) == ("2", 4, 0.5)
    assert config.early_exit.exit_loss == 1.0, "the study's own default, not a run's"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.toml", "tokns = 5", "'tokns' is not an option; known: .*Did you mean tokens"),
        ("x.toml", 'tokens = "5k"', "tokens should be int, not '5k'"),
        ("x.toml", "tokens = ", r"--config .*x\.toml is neither TOML \(\.toml\) nor JSON"),
        ("x.json", "[1]", "should hold options by name"),
    ],
)
def test_a_file_that_does_not_work(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        read("--config", str(tmp_path / name))


def test_what_a_run_will_do_is_said_before_it(data: Path) -> None:
    def lines(**more: Any) -> list[str]:
        shape = {"blocks": 2, "dim": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 12}
        chosen = {"context": 16, "batch_size": 2, "tokens": 96, **more}
        return plan_lines(decide(RunConfig.of(design="prenorm", data=str(data), **shape, **chosen)))

    # The text has 19 windows of 16 tokens.
    assert lines()[0] == "3 steps of 32 tokens"
    assert lines(tokens=960)[0] == "30 steps of 32 tokens: 3.2 epochs of 304 tokens"
    assert lines(tokens=304)[0] == "10 steps of 32 tokens: 1.1 epochs of 304 tokens"
    assert lines(evaluate_tokens=10**6)[1] == "an evaluation every step, on 304 held-out tokens"
    assert lines(tokens=960, evaluate_tokens=160)[1].startswith(
        "an evaluation every 3 steps, on 160 held-out tokens of 304 ("
    )
    assert len(lines()) == 2
    for more, what in (
        ({"compile": True}, "compiling the model: "),
        ({"compile_blocks": True}, "compiling the model: "),
        ({"backend": "compiled"}, "compiling the depth operators: "),
    ):
        assert lines(**more)[2].startswith(what)


def test_steps_follow_the_presets_batch() -> None:
    assert decide(RunConfig.of("mgr", steps=10)).config.data.tokens == 10 * 1024
    assert decide(RunConfig.of("mgr", steps=10, context=32)).config.data.tokens == 10 * 8 * 32


def told(step: int, steps: int = 100) -> dict[str, Any]:
    return {"step": step, "steps": steps, "loss": 2.5, "lr": 1e-3, "grad_norm": 1.25, "tokens_per_second": 3456.7}


def test_the_time_left() -> None:
    now = 0.0
    pace = Progress(print, 5.0, lambda: now)
    assert pace.due(told(41))
    assert pace.line(told(41)) == "step 41/100  loss 2.5000  lr 1.00e-03  norm 1.25  3,457 tokens/s"
    now = 4.0
    assert not pace.due(told(43))
    now = 10.0
    assert pace.due(told(46))
    assert pace.line(told(46)).startswith("step 46/100  1 min 48 s left  loss")
    assert pace.due(told(100))
    assert pace.line(told(100)).startswith("step 100/100  0 s left")


def test_a_long_evaluation_is_spoken_of() -> None:
    now = 0.0
    said: list[str] = []
    progress = Progress(said.append, 5.0, lambda: now)
    progress(told(41))
    said.clear()
    progress.evaluating(41, 2.0)
    now = 4.0
    progress.evaluating(41, 4.0)
    assert not said
    now = 6.0
    progress.evaluating(41, 6.0)
    now = 7.0
    progress.evaluating(41, 7.0)
    progress(told(42))
    assert said == ["step 41  evaluating for 6 s  Ctrl-C takes effect after it"]
    now = 12.0
    progress(told(43))
    assert said[1].startswith("step 43/100")


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0 s"), (59.4, "59 s"), (250, "4 min 10 s"), (7260, "2 h 1 min")])
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_live_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    with progress() as on_step:
        on_step(told(1))
        on_step(told(2))
        on_step.evaluated({"step": 2, "loss": 2.25, "bits_per_byte": 3.25})
        on_step(told(100))
    said = capsys.readouterr().err
    assert "step 1/100" in said
    assert "step 2/100" not in said
    assert "step 2  held-out loss 2.2500  3.2500 bits per byte" in said
    assert "step 100/100" in said
    # A narrow terminal cuts the line; it never wraps.
    assert "…" in said
    assert "tokens/s" not in said
