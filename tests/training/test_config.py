"""Every value that can't work is refused, with the option's name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from leadline.config import from_dict, to_dict
from leadline.designs import count_flops
from leadline.errors import LeadlineError, UsageError
from leadline.training import RunConfig
from leadline.training.resolve import decide, usable_device


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": 0}, "tokens=0 is too small"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"context": -1}, "context=-1"),
        ({"grad_accumulation": 0}, "accumulation=0"),
        ({"evaluate_every": 0}, "evaluate_every=0"),
        ({"evaluate_tokens": 0}, "evaluate_tokens=0"),
        ({"checkpoint_every": 0}, "checkpoint_every=0"),
        ({"keep": 0}, "keep=0"),
        ({"record_every": -1}, "record_every=-1 is too small; 0 or more work"),
        ({"warmup": 1.5}, "warmup=1.5 .* 0 to 1"),
        ({"final_fraction": -0.1}, "final_fraction=-0.1"),
        ({"schedule": "wsd", "warmup": 0.6, "decay": 0.6}, "warmup=0.6 and decay=0.6"),
        ({"schedule": "linear"}, "schedule=linear .* cosine and wsd work"),
        ({"precision": "float16"}, "precision=float16 .* float32 and bfloat16 work"),
        ({"lr": 0.0}, "lr=0 "),
        ({"lr": math.nan}, "lr=nan"),
        ({"clip": -1.0}, "clip=-1"),
        ({"weight_decay": math.inf}, "weight_decay=inf"),
        ({"seed": -1}, "seed=-1"),
        ({"optimizer": "adam"}, "optimizer=adam is not known; adamw and sgd work"),
        ({"momentum": 1.0}, "momentum=1 is out of range; 0 or more and less than 1 work"),
        ({"layer_dropout": 1.0}, "layer_dropout=1 "),
        ({"layer_dropout": math.nan}, "layer_dropout=nan "),
        ({"exit_loss": -0.5}, "exit_loss=-0.5 is out of range; a finite number, 0 or more, works"),
        ({"exit_loss": math.inf}, "exit_loss=inf"),
        ({"exit_loss": 1.0, "exit_curriculum": "none"}, "exit_curriculum=none .* rotational, gradual and all work"),
        ({"exit_loss": 1.0, "exit_weights": "late"}, "exit_weights=late .* even and depth work"),
        ({"exit_every": 0}, "exit_every=0 is too small"),
        (
            {"exit_loss": 1.0, "exit_every": 2, "exit_curriculum": "all"},
            "exit_every=2 belongs to exit_curriculum=rotational",
        ),
        ({"exit_every": 2}, "exit_every=2 does nothing without exit_loss=1; give both"),
        ({"decay": 0.1}, "decay=0.1 does nothing without schedule=wsd"),
        ({"momentum": 0.5}, "momentum=0.5 does nothing without optimizer=sgd"),
        ({"tokens": 5, "steps": 5}, "both say how long to train"),
        ({"tokens": "1k"}, "tokens='1k' is not a whole number"),
        ({"decay_embeddings": True, "weight_decay": 0.0}, "decay_embeddings=True does nothing"),
        ({"recompute": True}, "'recompute' is not an option"),
        ({"gradient_from": 0}, "gradient_from=0 is too small"),
        ({"gradient_from": 5, "gradient_until": 4}, "gradient_from=5 is after gradient_until=4"),
        ({"gradient_every": -1}, "gradient_every=-1 is too small; 0 or more work"),
        ({"repeat": "4"}, "repeat='4' does not work; 4x2 runs the last 4 blocks twice"),
        ({"repeat": "0x2"}, "repeat='0x2'"),
        ({"repeat": "4x1"}, "repeat='4x1'"),
        ({"compile": True, "layer_dropout": 0.1}, "--layer-dropout .* leave out one of the two"),
        ({"two_phase": True, "activation_checkpointing": True}, "--two-phase .* leave out one of the two"),
        ({"compile": True, "compile_blocks": True}, "--compile takes the whole model and --compile-blocks each block"),
        ({"compile": True, "exit_loss": 0.1}, "--exit-curriculum rotational .* --exit-curriculum all works"),
    ],
)
def test_values_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RunConfig.of(design="prenorm", data="sotu", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"design": "prenrom"}, "Did you mean prenorm"),
        ({"preset": "tini"}, "Did you mean tiny"),
        ({"shape": {"block": 2}}, "Did you mean blocks"),
        ({"shape": {"blocks": 0}}, "blocks=0"),
        ({"grad_accumulation": 3}, "accumulation=3 does not divide the batch size of 2"),
        ({"context": 4096}, "too short for one sequence"),
    ],
)
def test_values_that_do_not_fit_together(config: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decide(config(**fields))


def test_no_such_data(tmp_path: Path) -> None:
    with pytest.raises(LeadlineError, match="nowhere"):
        decide(RunConfig.of(design="prenorm", data=str(tmp_path / "nowhere")))


def test_no_such_device() -> None:
    assert usable_device("cpu").type == "cpu"
    for name in ("abacus", "cuda:99"):
        with pytest.raises(UsageError, match=f"--device {name}"):
            usable_device(name)


def test_everything_is_decided(config: Any) -> None:
    run = decide(config("mgr", steps=7, preset="Tiny", lr=None))
    assert run.config.design == "mgr-competitive"
    assert run.config.model.preset == "tiny"
    assert run.config.data.tokens == 7 * 2 * 16
    assert run.steps == 7
    assert run.config.logging.evaluate_every == 1
    assert run.learning_rate == (run.config.optimizer.lr or 0) > 0
    assert "kv_heads" in run.config.model.shape
    assert from_dict(RunConfig, to_dict(run.config)) == run.config


@pytest.mark.parametrize("more", [{}, {"evaluate_every": 40}, {"exit_loss": 0.5}, {"layer_dropout": 0.2}])
def test_an_evaluation_costs_at_most_a_fifth_of_the_steps_between_two(config: Any, more: dict[str, Any]) -> None:
    """By FLOPs; with LayerSkip the losses at the exits count too."""
    run = decide(config("mgr", steps=400, **more))
    flops = count_flops(run.model)
    passes = run.evaluate_tokens * flops.forward
    if run.layerskip:
        passes += run.evaluate_tokens * (flops.forward + (len(run.model.layers) - 1) * flops.head)
    trained = run.evaluate_every * run.batch_tokens * flops.training_total
    assert run.evaluate_tokens % run.context == 0
    assert passes <= trained / 5 < passes * (1 + run.context / run.evaluate_tokens)
    assert run.config.logging.evaluate_tokens == run.evaluate_tokens


def test_what_an_evaluation_reads_has_bounds_and_can_be_said(config: Any) -> None:
    assert decide(config(steps=1)).evaluate_tokens == 16, "one sequence at least"
    assert decide(config(steps=2_000_000)).evaluate_tokens == 65536
    assert decide(config(steps=1, evaluate_tokens=65536)).evaluate_tokens == 65536
    assert decide(config(steps=60)).evaluate_tokens == decide(config(steps=60)).evaluate_tokens == 112


def test_steps_are_rounded_up(config: Any) -> None:
    plain = config(steps=3)
    longer = plain.replaced(tokens=(plain.data.tokens or 0) + 1)
    assert decide(longer).steps == 4


def test_a_shape_that_is_the_presets_says_nothing(config: Any) -> None:
    assert decide(config(shape={"blocks": 24, "dim": 72})).config.model.shape == {}
