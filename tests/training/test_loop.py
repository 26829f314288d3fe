"""What a run does in a step, and what it writes."""

from __future__ import annotations

import json
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.connections import AttentionResiduals
from leadline.data import Batch, DataSet, Loader, bits_per_byte
from leadline.designs import PARTS, PRESETS, resolve
from leadline.errors import LeadlineError, UsageError
from leadline.models import Decoder
from leadline.ops import choice
from leadline.training import evaluation, load_model, train
from leadline.training.loop import Trainer
from leadline.training.resolve import decide
from leadline.training.run_folder import run_in

Lines = Callable[[Path], list[dict[str, Any]]]


def test_an_evaluation_is_told_of_while_it_lasts(config: Any, tmp_path: Path) -> None:
    told: list[tuple[int, float]] = []
    chosen = config(evaluate_every=4, evaluate_tokens=64, exit_loss=0.5)
    train(chosen, tmp_path, on_evaluation=lambda step, seconds: told.append((step, seconds)))
    # Held out are four windows of text, two to a batch: once for the loss, once for the losses at the exits.
    assert [step for step, _ in told] == [4] * 4 + [6] * 4
    for seconds in ([s for at, s in told if at == step] for step in (4, 6)):
        assert seconds == sorted(seconds)
        assert seconds[0] >= 0


def trainer(config: Any, out: Path) -> Trainer:
    run = decide(config)
    with run_in(out, run):
        pass
    return Trainer(run, out)


def test_the_loop_is_a_plain_loop(config: Any, data: Path, tmp_path: Path, lines: Lines) -> None:
    """Against PyTorch's own parts, written out."""
    chosen = config(steps=4, clip=0.1, warmup=0.5)
    train(chosen, tmp_path)
    run = decide(chosen)
    model = Decoder(run.model, seed=0)
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and n != "embed.weight"]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or n == "embed.weight"]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    loader = Loader(DataSet.open(data).train, 2, 16, 0)
    for record, share in zip(lines(tmp_path / "steps.jsonl"), (0.5, 1.0, 0.55, 0.1), strict=True):
        batch = loader.next()
        loss = F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for group in optimiser.param_groups:
            group["lr"] = 0.01 * share
        optimiser.step()
        optimiser.zero_grad()
        assert record["loss"] == pytest.approx(loss.item(), rel=1e-6)
        assert record["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
        assert record["grad_norm"] > 0.1
        assert record["lr"] == pytest.approx(0.01 * share)
    trained, _ = load_model(tmp_path)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_accumulation_is_the_large_batch(config: Any, tmp_path: Path, lines: Lines) -> None:
    for parts in (1, 2, 4):
        train(config("mgr", batch_size=4, grad_accumulation=parts), tmp_path / str(parts))
    whole = lines(tmp_path / "1" / "steps.jsonl")
    for parts in (2, 4):
        for one, two in zip(whole, lines(tmp_path / str(parts) / "steps.jsonl"), strict=True):
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
            assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)


def test_records(config: Any, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    summary = train(config("attnres", record_every=3, evaluate_every=2, lr=None), tmp_path, on_step=told.append)
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [{**record, "steps": 6} for record in steps] == told
    assert [record["step"] for record in steps] == [1, 2, 3, 4, 5, 6]
    assert [record["tokens"] for record in steps] == [32, 64, 96, 128, 160, 192]
    assert set(steps[0]) == {"step", "tokens", "loss", "lr", "grad_norm", "tokens_per_second", "memory_bytes"}
    assert all(record["memory_bytes"] > 1e6 and record["tokens_per_second"] > 0 for record in steps)
    evals = [json.loads(line) for line in (tmp_path / "evals.jsonl").read_text().splitlines()]
    assert [record["step"] for record in evals] == [2, 4, 6]
    assert (evals[-1]["loss"], evals[-1]["bits_per_byte"]) == (summary.loss, summary.bits_per_byte)
    saved = json.loads((tmp_path / "summary.json").read_text())
    assert saved["parameters"] == sum(p.numel() for p in load_model(tmp_path)[0].parameters())
    assert saved["steps"] == 6
    assert saved["tokens"] == 192
    assert saved["train_loss"] == steps[-1]["loss"]
    assert saved["flops_per_token"] > saved["depth_flops_per_token"] > 0
    assert saved["tokens_per_second"] == pytest.approx(192 / saved["seconds"])
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["config"]["design"] == "attnres"
    assert run["model"]["connection"]["kind"] == "attention-residuals"
    assert run["data"]["hash"]
    assert run["rate_source"]


def test_the_depth_record(config: Any, tmp_path: Path) -> None:
    train(config("mgr(streams=2)", record_every=3), tmp_path)
    records = [json.loads(line) for line in (tmp_path / "depth.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [3, 6]
    for record in records:
        assert len(record["read_rms"]) == 5
        assert len(record["output_rms"]) == 4
        assert record["block_output_rms"] == [record["read_rms"][2], record["read_rms"][4]]
        assert len(record["gradient_norm"]) == len(record["gradient_share"]) == 2
        assert sum(record["gradient_share"]) == pytest.approx(1.0)
        assert {"weights", "gates"} <= set(record["connection"])


def test_recording_changes_nothing(config: Any, tmp_path: Path, lines: Lines) -> None:
    train(config("attnres", record_every=0), tmp_path / "without")
    train(config("attnres", record_every=1), tmp_path / "with")
    assert (tmp_path / "without" / "depth.jsonl").read_text() == ""
    assert lines(tmp_path / "with" / "steps.jsonl") == lines(tmp_path / "without" / "steps.jsonl")


@pytest.mark.parametrize("design", ["prenorm", "mgr", "bhyt"])
def test_recomputation_changes_nothing(config: Any, tmp_path: Path, lines: Lines, design: str) -> None:
    train(config(design, record_every=2), tmp_path / "stored")
    train(config(design, record_every=2, activation_checkpointing=True), tmp_path / "recomputed")
    for name in ("steps.jsonl", "depth.jsonl"):
        assert lines(tmp_path / "recomputed" / name) == lines(tmp_path / "stored" / name)


@pytest.mark.parametrize("design", ["attnres", "attnres-block(blocks=2)"])
@pytest.mark.parametrize("options", [{}, {"exit_loss": 0.5}, {"precision": "bfloat16"}], ids=str)
def test_two_phases_learn_the_same(
    config: Any, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch, design: str, options: dict[str, Any]
) -> None:
    """Every step reads ahead, and losses differ by rounding alone."""
    read = []
    right = AttentionResiduals.prefetch
    monkeypatch.setattr(AttentionResiduals, "prefetch", lambda *given: read.append(1) or right(*given))
    train(config(design, **options), tmp_path / "one")
    assert not read
    train(config(design, **options, two_phase=True), tmp_path / "two")
    one, two = lines(tmp_path / "one" / "steps.jsonl"), lines(tmp_path / "two" / "steps.jsonl")
    assert len(read) >= len(two) == len(one)
    close = 1e-3 if options.get("precision") else 1e-5
    assert [step["loss"] for step in two] == pytest.approx([step["loss"] for step in one], rel=close)


def test_two_phases_need_a_design_that_has_them(config: Any, tmp_path: Path) -> None:
    """The message names the designs that work, and no others do."""
    for name, part in PARTS.items():
        if "connection" in part.slots:
            works = name in ("attnres", "attnres-block")
            connection = resolve(name).decoder(PRESETS["tiny"], 256).connection
            assert connection.two_phase == works, name
    for design in ("prenorm", "mgr", "attnres(window=2)", "attnres(key_norm=false)", "attnres(weights=sigmoid)"):
        with pytest.raises(UsageError, match=r"--two-phase .* attnres and attnres-block work, with weights=softmax"):
            train(config(design, two_phase=True), tmp_path / "run")


def test_bfloat16_keeps_float32_parameters(config: Any, tmp_path: Path, lines: Lines) -> None:
    train(config("attnres"), tmp_path / "wide")
    train(config("attnres", precision="bfloat16"), tmp_path / "narrow")
    assert {p.dtype for p in load_model(tmp_path / "narrow")[0].parameters()} == {torch.float32}
    wide, narrow = lines(tmp_path / "wide" / "steps.jsonl"), lines(tmp_path / "narrow" / "steps.jsonl")
    assert narrow != wide
    for one, two in zip(wide, narrow, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=0.01)


def test_a_compiled_model_learns_the_same(
    config: Any, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compiled(model, fullgraph=True, backend="aot_eager"))
    train(config(steps=3), tmp_path / "eager")
    train(config(steps=3, compile=True), tmp_path / "compiled")
    eager, other = lines(tmp_path / "eager" / "steps.jsonl"), lines(tmp_path / "compiled" / "steps.jsonl")
    for one, two in zip(eager, other, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    load_model(tmp_path / "compiled")


@pytest.mark.parametrize(
    "options",
    [
        {"record_every": 2, "gradient_every": 2},
        {"layer_dropout": 0.5, "exit_loss": 1.0},
        {"activation_checkpointing": True, "record_every": 2},
    ],
)
def test_compiled_blocks_learn_the_same(
    config: Any, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    compiled, counted = torch.compile, []

    def counting(function: Any, *, fullgraph: bool, **other: Any) -> Any:
        counted.append(function)
        return compiled(function, fullgraph=fullgraph, backend="aot_eager")

    monkeypatch.setattr(torch, "compile", counting)
    torch._dynamo.reset()
    train(config(steps=4, **options), tmp_path / "eager")
    train(config(steps=4, **options, compile_blocks=True), tmp_path / "compiled")
    torch._dynamo.reset()
    assert len(counted) == 1
    for name in ("steps.jsonl", "evals.jsonl", "depth.jsonl"):
        eager, other = lines(tmp_path / "eager" / name), lines(tmp_path / "compiled" / name)
        assert len(eager) == len(other)
        for one, two in zip(eager, other, strict=True):
            assert two.keys() == one.keys()
            if "loss" in one:
                assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_blocks_that_invert_are_not_compiled_alone(config: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--compile-blocks does not work with memory="):
        train(config("mgr(memory=invert)", compile_blocks=True), tmp_path / "run")


def test_evaluation_is_the_mean_over_the_held_out_part(config: Any, data: Path, tmp_path: Path) -> None:
    summary = train(config(evaluate_tokens=80), tmp_path)
    model, _ = load_model(tmp_path)
    split = DataSet.open(data).heldout
    tokens = torch.from_numpy(split.read(0, 81))
    assert split.windows(16) == 5
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens[:-1].view(5, 16)).flatten(0, 1), tokens[1:]).item()
    assert summary.loss == pytest.approx(loss, rel=1e-5)
    assert summary.bits_per_byte == pytest.approx(loss / math.log(2) * split.tokens / split.bytes, rel=1e-5)
    assert summary.bits_per_byte == bits_per_byte(summary.loss, split.bytes_per_token)


def test_targets_that_do_not_count_are_not_in_the_held_out_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Embedding(3, 3)
    tokens = torch.tensor([[0, 1, 2], [2, 1, 0]])
    batches = [
        Batch(tokens, torch.tensor([[1, -100, -100], [-100, -100, -100]])),
        Batch(tokens, torch.tensor([[-100, 2, 1], [1, 0, -100]])),
        Batch(tokens, torch.full((2, 3), -100)),
    ]
    monkeypatch.setattr(evaluation, "evaluation_batches", lambda *args: iter(batches))
    split: Any = types.SimpleNamespace(bytes_per_token=1.0)
    found = evaluation.evaluate(model, split, evaluation.Reading(2, 3, 18, torch.device("cpu"), "float32"))
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    truth = F.cross_entropy(model(tokens.flatten().repeat(3)), targets).item()
    assert found.loss == pytest.approx(truth, rel=1e-5)


def test_loss_falls(config: Any, tmp_path: Path, lines: Lines) -> None:
    train(config("mgr", steps=60), tmp_path)
    losses = [record["loss"] for record in lines(tmp_path / "steps.jsonl")]
    assert losses[0] == pytest.approx(math.log(256), abs=0.3)
    assert losses[-1] < 3.5


def test_seeds_differ_and_repeat(config: Any, tmp_path: Path, lines: Lines) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(config(steps=2, seed=seed), tmp_path / name)
    a, b, c = (lines(tmp_path / name / "steps.jsonl") for name in "abc")
    assert a == b != c


class Poison(nn.Module):
    """Wraps a forward pass; the loss, or its gradient alone, is not finite in one call."""

    def __init__(self, model: nn.Module, call: int, *, gradient: bool) -> None:
        super().__init__()
        self.model, self.call, self.gradient = model, call, gradient

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens)
        self.call -= 1
        if self.call == 0:
            if not self.gradient:
                return logits * math.nan
            logits.register_hook(lambda grad: grad * math.inf)
        return logits


@pytest.mark.parametrize("gradient", [False, True])
def test_not_finite_stops_before_the_update(config: Any, tmp_path: Path, lines: Lines, gradient: bool) -> None:
    train(config(), tmp_path / "whole")
    poisoned = trainer(config(), tmp_path / "run")
    poisoned.passes.forward = Poison(poisoned.model, 3, gradient=gradient)
    what = "gradient" if gradient else "loss"
    with pytest.raises(LeadlineError, match=rf"the {what} of step 3 is not finite \(batch: epoch 0, sequence 4 and"):
        poisoned.train()
    assert [record["step"] for record in lines(tmp_path / "run" / "steps.jsonl")] == [1, 2]
    # What was saved is the state after step 2, whole: a run that goes on from it is as if nothing had happened.
    train(config(), tmp_path / "run")
    assert lines(tmp_path / "run" / "steps.jsonl") == lines(tmp_path / "whole" / "steps.jsonl")


def test_a_held_out_loss_that_is_not_finite(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leadline.training.evaluation.bits_per_byte", lambda loss, size: loss)
    monkeypatch.setattr("leadline.training.evaluation.loss_of", lambda logits, targets: torch.tensor(math.nan))
    with pytest.raises(LeadlineError, match="held-out loss after step 1 is not finite"):
        train(config(), tmp_path)


def test_too_little_memory(config: Any, tmp_path: Path) -> None:
    def fail(told: dict[str, Any]) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(LeadlineError, match=r"too little memory .* --grad-accumulation"):
        train(config(), tmp_path, on_step=fail)


def test_tensorboard(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"log_to=tensorboard needs .* pip install 'leadline\[track\]'"):
        train(config(log_to="tensorboard"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tensorboard_events(config: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(config(log_to="tensorboard"), tmp_path)
    assert list((tmp_path / "tensorboard").glob("events*"))


@pytest.mark.parametrize(("design", "note"), [("bhyt + mgr", "exact here"), ("attnres-block", "in blocks of")])
def test_notes(config: Any, tmp_path: Path, design: str, note: str) -> None:
    assert any(note in said for said in train(config(design, steps=1), tmp_path).notes)


def test_a_rate_that_was_not_tuned_is_said(config: Any, tmp_path: Path) -> None:
    said = train(config("hc", steps=1, lr=None), tmp_path / "own").notes
    assert any("learning rate 0.008" in note and "not tuned at this size" in note for note in said)
    assert not any("tuned" in note for note in train(config("hc", steps=1), tmp_path / "given").notes)


def test_bhyt_is_refreshed_while_it_trains(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fresh = Decoder.refresh_statistics
    monkeypatch.setattr(Decoder, "refresh_statistics", lambda self: calls.append(1) or fresh(self))
    run = trainer(config("bhyt", steps=120), tmp_path)
    assert run.refresh_every == 2
    calls.clear()
    for _ in range(6):
        run._one_step()
    assert len(calls) == 3


@pytest.mark.parametrize("backend", ["reference", "lean"])
def test_a_backend_asked_for_is_the_one_that_runs(config: Any, tmp_path: Path, backend: str) -> None:
    seen = set()

    def watch(*_: object, **__: object) -> None:
        seen.add(choice._forced[-1])

    train(config(design="attnres", backend=backend), tmp_path / "run", on_step=watch)
    assert seen == {backend}
    assert choice._forced[-1] == "auto"


def test_a_backend_that_cannot_run_is_bad_usage(config: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--backend triton can't run here"):
        train(config(backend="triton"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loss_in_pieces_trains_as_the_whole_does(config: Any, tmp_path: Path) -> None:
    whole = train(config(), tmp_path / "whole")
    pieces = train(config(loss_chunk=3), tmp_path / "pieces")
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)
