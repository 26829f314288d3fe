"""LayerSkip: what is dropped how often, which exits a step has, and that the loss is the sum that it should be."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.data import DataSet, Loader
from leadline.errors import LeadlineError, UsageError
from leadline.models import Decoder
from leadline.training import RunConfig, load_gradient, load_model, train
from leadline.training.evaluation import Reading, evaluate_exits
from leadline.training.layerskip import LayerSkip
from leadline.training.loop import Trainer
from leadline.training.resolve import decide
from leadline.training.run_folder import run_in
from leadline.training.step import Passes

Lines = Callable[[Path], list[dict[str, Any]]]
DEEP = {"blocks": 5, "dim": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 12}


def skip(blocks: int = 5, steps: int = 40, **fields: Any) -> LayerSkip:
    return LayerSkip(blocks=blocks, steps=steps, config=RunConfig.of(design="prenorm", data="sotu", **fields))


def test_the_rates_are_the_papers() -> None:
    rates = skip(blocks=4, layer_dropout=0.3).rates()
    assert rates == pytest.approx([0.3 * (math.exp(block * math.log(2) / 3) - 1) for block in range(4)])
    assert (rates[0], rates[-1]) == (0.0, pytest.approx(0.3))
    assert skip(blocks=1, layer_dropout=0.3).rates() == [0.0]


def test_blocks_are_dropped_so_often() -> None:
    often = skip(layer_dropout=0.6)
    counts = torch.zeros(5)
    for step in range(1, 4001):
        for block in often.dropped(step):
            counts[block] += 1
    assert (counts / 4000).tolist() == pytest.approx(often.rates(), abs=0.03)
    assert counts[0] == 0
    assert skip().dropped(1) == frozenset()


def test_a_draw_depends_on_the_seed_and_the_step_alone() -> None:
    torch.manual_seed(1)
    one = [skip(layer_dropout=0.9, seed=3).dropped(step) for step in range(1, 20)]
    torch.manual_seed(2)
    assert [skip(layer_dropout=0.9, seed=3, exit_loss=1.0).dropped(step) for step in range(1, 20)] == one
    assert [skip(layer_dropout=0.9, seed=4).dropped(step) for step in range(1, 20)] != one
    assert len(set(one)) > 3


def test_the_curricula() -> None:
    turns = skip(exit_loss=1.0, exit_every=2)
    assert [list(turns.weights(step)) for step in (1, 2, 3)] == [[1, 3], [0, 2], [1, 3]]
    gradual = skip(exit_loss=1.0, exit_curriculum="gradual")
    assert [list(gradual.weights(step)) for step in (1, 6, 11, 16, 20, 40)] == [
        [3],
        [2, 3],
        [1, 2, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
    ]
    assert list(skip(exit_loss=1.0, exit_curriculum="all").weights(1)) == [0, 1, 2, 3]
    assert skip().weights(1) == {}
    # More than there are exits: one in each step, and every exit has its turn.
    seldom = skip(exit_loss=1.0, exit_every=99)
    assert sorted(next(iter(seldom.weights(step))) for step in range(1, 5)) == [0, 1, 2, 3]


@pytest.mark.parametrize("curriculum", ["rotational", "gradual", "all"])
def test_a_steps_exits_weigh_the_same_together(curriculum: Any) -> None:
    for weights in ("even", "depth"):
        some = skip(exit_loss=0.5, exit_curriculum=curriculum, exit_weights=weights)
        for step in range(1, 41):
            assert sum(some.weights(step).values()) == pytest.approx(0.5)
        means = some.mean_weights()
        assert sum(means[:-1]) == pytest.approx(0.5)
        assert means[-1] == 1.0
    assert skip(exit_loss=10.0, exit_curriculum="all", exit_weights="depth").weights(1) == pytest.approx(
        {0: 0.5, 1: 1.5, 2: 3.0, 3: 5.0}
    )


def test_mean_weights_are_those_of_the_steps() -> None:
    some = skip(exit_loss=0.5, exit_curriculum="gradual", steps=8)
    by_hand = [sum(some.weights(step).get(block, 0.0) for step in range(1, 9)) / 8 for block in range(4)]
    assert some.mean_weights() == pytest.approx([*by_hand, 1.0])
    assert skip().mean_weights() == [0.0] * 4 + [1.0]


@pytest.mark.parametrize("curriculum", ["rotational", "gradual", "all"])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_means_over_the_steps(curriculum: Any, steps: int) -> None:
    every = 3 if curriculum == "rotational" else None
    some = skip(exit_loss=0.5, exit_curriculum=curriculum, steps=steps, exit_every=every)
    counts = [len(some.weights(step)) for step in range(1, steps + 1)]
    assert some.most_exits == max(counts)
    assert some.mean_exits == pytest.approx(sum(counts) / steps)
    by_hand = [sum(some.weights(step).get(block, 0.0) for step in range(1, steps + 1)) / steps for block in range(4)]
    assert some.mean_weights() == pytest.approx([*by_hand, 1.0])


@pytest.mark.parametrize("fields", [{}, {"exit_loss": 0.5}, {"exit_loss": 0.5, "exit_curriculum": "gradual"}])
def test_a_run_of_any_length_begins(config: Any, fields: dict[str, Any], tmp_path: Path) -> None:
    """No list of all steps is made; 10 million million tokens are 300 thousand million steps here."""

    class StoppedError(Exception):
        pass

    def stop(told: dict[str, Any]) -> None:
        raise StoppedError

    chosen = config(**fields).replaced(tokens=10**13)
    assert decide(chosen).notes() is not None
    with pytest.raises(StoppedError):
        train(chosen, tmp_path / "run", on_step=stop)


def passes(config: RunConfig) -> Passes:
    run = decide(config)
    return Passes(Decoder(run.model, seed=0), run, torch.device("cpu"))


@pytest.mark.parametrize("design", ["prenorm", "attnres-block", "mgr(streams=2)", "hc", "bhyt", "post-ln"])
@pytest.mark.parametrize("chunk", [None, 5])
def test_the_loss_is_the_sum(config: Any, data: Path, design: str, chunk: int | None) -> None:
    """Written out: the exit after block m is the model that skips all blocks after it."""
    some = passes(
        config(
            design,
            shape=DEEP,
            exit_loss=0.8,
            exit_weights="depth",
            exit_every=2,
            layer_dropout=0.9,
            loss_chunk=chunk,
            steps=9,
        )
    )
    layerskip = some.layerskip
    step = next(step for step in range(1, 9) if layerskip.dropped(step))
    batch = Loader(DataSet.open(data).train, 2, 16, 0).next()
    found, _ = some.gradients(batch, step, recorded=False)
    gradients = {name: p.grad.clone() for name, p in some.model.named_parameters() if p.grad is not None}
    some.model.zero_grad()
    gone = [n for block in layerskip.dropped(step) for n in (2 * block, 2 * block + 1)]

    def loss(after: int) -> Tensor:
        logits = some.model(batch.tokens, skip={*gone, *range(2 * after + 2, 10)})
        return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())

    exits = [weight * loss(block) for block, weight in layerskip.weights(step).items()]
    final = loss(4)
    (final + sum(exits)).backward()
    assert float(found.final) == pytest.approx(final.item(), rel=1e-5)
    assert float(found.exits) == pytest.approx(sum(exits).item(), rel=1e-5)
    assert gradients.keys() == {name for name, p in some.model.named_parameters() if p.grad is not None}
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, some.model.get_parameter(name).grad, rtol=1e-3, atol=1e-6)


def test_every_pass_of_a_step_drops_the_same(config: Any, data: Path) -> None:
    some = passes(config(batch_size=4, grad_accumulation=4, layer_dropout=0.9, shape=DEEP))
    step = next(step for step in range(1, 9) if some.layerskip.dropped(step))
    some.gradients(Loader(DataSet.open(data).train, 4, 16, 0).next(), step, recorded=False)
    for block in range(5):
        dropped = block in some.layerskip.dropped(step)
        assert all((p.grad is None) == dropped for p in some.model.blocks[block].parameters())


@pytest.mark.parametrize("design", ["prenorm", "mgr", "attnres"])
def test_a_run(config: Any, tmp_path: Path, design: str) -> None:
    chosen = config(design, shape=DEEP, layer_dropout=0.6, exit_loss=0.5, record_every=2, evaluate_every=3, steps=8)
    summary = train(chosen, tmp_path)
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    dropped = [record["dropped"] for record in steps]
    assert any(dropped)
    assert all(record["exit_loss"] > 0 for record in steps)
    evals = [json.loads(line) for line in (tmp_path / "evals.jsonl").read_text().splitlines()]
    assert all(len(record["exit_losses"]) == 5 for record in evals)
    # The last exit is the whole model, which evaluation runs whatever the steps drop.
    assert evals[-1]["exit_losses"][-1] == pytest.approx(summary.loss, rel=1e-5)
    depth = [json.loads(line) for line in (tmp_path / "depth.jsonl").read_text().splitlines()]
    assert [record["step"] for record in depth] == [2, 4, 6, 8]
    for record in depth:
        assert all(rms > 0 for rms in record["read_rms"])
        missing = [block for block, norm in enumerate(record["gradient_norm"]) if norm is None]
        assert missing == dropped[record["step"] - 1]
    gradient = load_gradient(tmp_path)
    assert gradient["steps_without_gradient"]["block"] == [sum(block in d for d in dropped) for block in range(5)]
    said = json.loads((tmp_path / "run.json").read_text())["layerskip"]
    assert said["dropout_rates"] == pytest.approx(decide(chosen).layerskip.rates())
    assert said["exit_weights"] == pytest.approx(decide(chosen).layerskip.mean_weights())
    assert any("layer dropout leaves out" in note for note in summary.notes)
    assert any("4.0 early exits a step" in note and "don't count" in note for note in summary.notes)


def test_an_exit_that_is_not_finite_stops_before_the_update(config: Any, tmp_path: Path, lines: Lines) -> None:
    chosen = config(shape=DEEP, exit_loss=0.5, layer_dropout=0.6, equalise=True, optimizer="sgd", steps=5)
    train(chosen, tmp_path / "whole")
    run = decide(chosen)
    with run_in(tmp_path / "run", run):
        pass
    trainer = Trainer(run, tmp_path / "run")
    whole, calls = trainer.passes.exits, []

    def poisoned(*args: Any, **fields: Any) -> list[Tensor]:
        calls.append(1)
        first, *rest = whole(*args, **fields)
        return [first * math.nan if len(calls) == 3 else first, *rest]

    trainer.passes.exits = poisoned
    with pytest.raises(LeadlineError, match="the loss of step 3 is not finite"):
        trainer.train()
    train(chosen, tmp_path / "run")
    assert lines(tmp_path / "run" / "steps.jsonl") == lines(tmp_path / "whole" / "steps.jsonl")


def test_tensorboard_events(config: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(config(shape=DEEP, layer_dropout=0.6, log_to="tensorboard"), tmp_path)
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_exit_losses_are_those_of_shorter_models(config: Any, data: Path, tmp_path: Path) -> None:
    train(config("mgr(streams=2)", shape=DEEP), tmp_path)
    model, _ = load_model(tmp_path)
    split = DataSet.open(data).heldout
    found = evaluate_exits(model, split, Reading(2, 16, 65536, torch.device("cpu"), "float32"))
    tokens = torch.from_numpy(split.read(0, 81))
    for block, loss in enumerate(found):
        with torch.no_grad():
            logits = model(tokens[:-1].view(5, 16), skip=range(2 * block + 2, 10))
        assert loss == pytest.approx(F.cross_entropy(logits.flatten(0, 1), tokens[1:]).item(), rel=1e-5)


def test_recomputation_changes_nothing(config: Any, tmp_path: Path, lines: Lines) -> None:
    chosen = config("mgr", shape=DEEP, layer_dropout=0.6, exit_loss=0.5, record_every=2)
    train(chosen, tmp_path / "stored")
    train(chosen.replaced(activation_checkpointing=True), tmp_path / "recomputed")
    for name in ("steps.jsonl", "depth.jsonl", "evals.jsonl"):
        assert lines(tmp_path / "recomputed" / name) == lines(tmp_path / "stored" / name)


def test_exits_compiled(config: Any, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compiled(model, fullgraph=True, backend="aot_eager"))
    chosen = config(steps=3, exit_loss=0.5, exit_curriculum="all")
    train(chosen, tmp_path / "eager")
    train(chosen.replaced(compile=True), tmp_path / "compiled")
    eager, other = lines(tmp_path / "eager" / "steps.jsonl"), lines(tmp_path / "compiled" / "steps.jsonl")
    for one, two in zip(eager, other, strict=True):
        assert two["exit_loss"] == pytest.approx(one["exit_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("design", "fields", "message"),
    [
        ("mgr(memory=invert)", {}, "--exit-loss 0.5 .*memory=store works"),
        ("prenorm", {"shape": {**DEEP, "blocks": 1}}, "--exit-loss 0.5 needs 2 blocks or more; this model has 1"),
    ],
)
def test_models_without_exits(config: Any, design: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decide(config(design, exit_loss=0.5, **fields))


def test_layer_dropout_with_inverted_memory(config: Any, tmp_path: Path, lines: Lines) -> None:
    for name, design in (("store", "mgr(streams=2)"), ("invert", "mgr(streams=2, memory=invert)")):
        train(config(design, shape=DEEP, layer_dropout=0.6), tmp_path / name)
    one, two = lines(tmp_path / "store" / "steps.jsonl"), lines(tmp_path / "invert" / "steps.jsonl")
    assert [record["loss"] for record in two] == pytest.approx([record["loss"] for record in one], rel=1e-3)
