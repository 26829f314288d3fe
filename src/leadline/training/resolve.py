"""From a configuration to everything that a run needs, with nothing left open."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from leadline import __version__
from leadline.config import to_dict
from leadline.data import DataSet
from leadline.data import resolve as resolve_data
from leadline.designs import (
    Design,
    Preset,
    ShapeConfig,
    check_two_phase,
    count_flops,
    preset_named,
    reshaped,
    resolve,
    settings,
)
from leadline.designs.settings import UNTUNED, Settings
from leadline.distributed.world import World
from leadline.errors import UsageError
from leadline.models import DecoderConfig
from leadline.training.config import SHAPE, Model, RunConfig, parse_repeat
from leadline.training.interventions import check_layerskip, notes, repeated
from leadline.training.layerskip import LayerSkip

EVALUATIONS = 10
EVALUATE_TOKENS = 65536
EVALUATION_PART = 5
"""Where nobody says how much text an evaluation reads, it costs at most one part in five of the steps between two."""
SGD_FACTOR = 200.0
"""SGD's rate for each 1 of AdamW's [ours]. From 100 steps of prenorm at the preset tiny, seed 3, momentum 0.9; rate and
held-out bits per byte: 0.1 4.503, 0.4 4.333, 0.8 4.205, 1.6 4.474. Nothing else was swept."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run with every value decided.

    Attributes:
        config: without None, but for `clip` and `checkpoint_every`.
        steps: optimiser steps.
        model: the decoder's configuration.
        rate_source: where the learning rate comes from, in words.
    """

    config: RunConfig
    design: Design
    preset: Preset
    shape: ShapeConfig
    data: DataSet
    model: DecoderConfig
    steps: int
    batch_size: int
    context: int
    learning_rate: float
    evaluate_every: int
    evaluate_tokens: int
    rate_source: str

    @property
    def first_steps(self) -> int:
        """Steps as first planned, before the run was extended; what follows the run's length stays as it began."""
        return min((*self.config.schedule.extended, self.steps))

    @property
    def layerskip(self) -> LayerSkip:
        """What each step drops and where it exits; nothing, unless the run asks for it."""
        return LayerSkip(blocks=len(self.model.block_layers), steps=self.steps, config=self.config)

    def notes(self) -> list[str]:
        """What should be said of the run beside its numbers."""
        rate = [f"learning rate {self.learning_rate:g}: {self.rate_source}"] if UNTUNED in self.rate_source else []
        return [*self.design.notes(self.shape), *notes(self.config, self.model, self.layerskip), *rate]

    @property
    def batch_tokens(self) -> int:
        """Tokens in one optimiser step."""
        return self.batch_size * self.context

    @property
    def epochs(self) -> float:
        """How many times the run reads its training text."""
        return self.steps * self.batch_size / self.data.train.windows(self.context)

    def describe(self) -> dict[str, Any]:
        """What is saved beside the results."""
        return {
            "leadline": __version__,
            "config": to_dict(self.config),
            "model": to_dict(self.model),
            "design": {"expression": self.design.expression, "source": self.design.source},
            "steps": self.steps,
            "rate_source": self.rate_source,
            "data": {"name": self.config.data.data, "hash": self.data.hash, "vocab_size": self.data.vocab_size},
            "flops_per_token": count_flops(self.model).training_total,
            "torch": torch.__version__,
            "layerskip": self.layerskip.describe() if self.layerskip else None,
        }


def decide(config: RunConfig) -> Run:
    """Opens the data, finds design and preset, and fills in what the configuration leaves open.

    Raises:
        UsageError: a name or a value doesn't work; what does is named.
        LeadlineError: the data is damaged.
    """
    design = resolve(config.design)
    preset = preset_named(config.model.preset)
    shape = shape_of(config.model)
    data = resolve_data(config.data.data)
    data.train.windows(shape.context)
    data.heldout.windows(shape.context)
    found = settings(design, preset, shape)
    design = dataclasses.replace(design, init=found.init)
    batch_size = preset.batch_size if config.data.batch_size is None else config.data.batch_size
    micro_batches = config.data.grad_accumulation
    if batch_size % micro_batches:
        raise UsageError(f"grad_accumulation={micro_batches} does not divide the batch size of {batch_size}")
    steps = config.data.steps
    if steps is None:
        tokens = preset.tokens if config.data.tokens is None else config.data.tokens
        steps = -(-tokens // (batch_size * shape.context))
    if config.logging.gradient_from > steps:
        raise UsageError(
            f"gradient_from={config.logging.gradient_from} is after the run's last step, {steps}; no step counts"
        )
    if any(end >= steps for end in config.schedule.extended):
        raise UsageError(f"extended={list(config.schedule.extended)} should lie before the run's last step, {steps}")
    repeat = config.interventions.repeat
    model = repeated(design.decoder(shape, data.vocab_size), repeat)
    rate, source = _rate(config, found)
    every = config.early_exit.exit_every
    exits = config.early_exit.exit_loss > 0
    if exits and config.early_exit.curriculum == "rotational":
        every = LayerSkip(blocks=len(model.block_layers), steps=steps, config=config).every
    evaluate_every = config.logging.evaluate_every or max(1, -(-steps // EVALUATIONS))
    between = min(evaluate_every, steps) * batch_size * shape.context
    evaluate_tokens = config.logging.evaluate_tokens or _affordable(config, model, between)
    full = config.replaced(
        design=design.expression,
        preset=preset.name,
        **sizes_of(preset, shape),
        tokens=steps * batch_size * shape.context,
        steps=None,
        batch_size=batch_size,
        context=shape.context,
        lr=rate,
        evaluate_every=evaluate_every,
        evaluate_tokens=evaluate_tokens,
        momentum=config.optimizer.sgd_momentum if config.optimizer.optimizer == "sgd" else None,
        decay=config.schedule.decay_share if config.schedule.schedule == "wsd" else None,
        exit_curriculum=config.early_exit.curriculum if exits else None,
        exit_weights=(config.early_exit.exit_weights or "even") if exits else None,
        exit_every=every,
        repeat=None if repeat is None else "x".join(map(str, parse_repeat(repeat))),
    )
    run = Run(
        config=full,
        design=design,
        preset=preset,
        shape=shape,
        data=data,
        model=model,
        steps=steps,
        batch_size=batch_size,
        context=shape.context,
        learning_rate=rate,
        evaluate_every=evaluate_every,
        evaluate_tokens=evaluate_tokens,
        rate_source=source,
    )
    check_layerskip(run.layerskip, model)
    if full.runtime.two_phase:
        check_two_phase(model.connection)
    if full.runtime.compile_blocks and getattr(model.connection, "memory", "store") == "invert":
        raise UsageError(
            '--compile-blocks does not work with memory="invert", whose backward pass is not part of a block; '
            "--compile works with it"
        )
    return run


def _affordable(config: RunConfig, model: DecoderConfig, between: int) -> int:
    """Held-out tokens that cost at most a fifth of training on `between` tokens, in whole sequences, by FLOPs.

    By FLOPs and not by the clock, so that a run that is continued, or repeated elsewhere, reads the same text.
    """
    flops = count_flops(model)
    cost = flops.forward
    if config.early_exit.layer_dropout > 0 or config.early_exit.exit_loss > 0:
        # The losses at the exits take another pass, and the head once for every block.
        cost += flops.forward + (len(model.block_layers) - 1) * flops.head
    tokens = between * flops.training_total // (EVALUATION_PART * cost)
    return max(1, min(tokens, EVALUATE_TOKENS) // model.context) * model.context


def _rate(config: RunConfig, found: Settings) -> tuple[float, str]:
    """The peak learning rate, and where it comes from."""
    if config.optimizer.lr is not None:
        return config.optimizer.lr, "given"
    if config.optimizer.optimizer == "sgd":
        source = f"{SGD_FACTOR:g} times AdamW's rate [ours, not swept], which is: {found.source}"
        return SGD_FACTOR * found.learning_rate, source
    return found.learning_rate, found.source


def check_parallel(run: Run, world: World) -> None:
    """Raises UsageError where a run does not work on so many processes."""
    if world.size == 1:
        return
    config, parts = run.config, world.size * run.config.data.grad_accumulation
    if run.batch_size % parts:
        raise UsageError(
            f"batch_size={run.batch_size} can't be shared out among {world.size} processes with "
            f"grad_accumulation={config.data.grad_accumulation}; a multiple of {parts} can"
        )
    alone = {
        "--two-phase": config.runtime.two_phase,
        "--compile": config.runtime.compile,
        "--compile-blocks": config.runtime.compile_blocks,
        "--gradient-every": config.logging.gradient_every > 0,
        "--equalise-updates": config.interventions.equalise_updates,
        'memory="invert"': getattr(run.model.connection, "memory", "store") == "invert",
    }
    for option, asked in alone.items():
        if asked:
            raise UsageError(f"{option} works in one process alone, and there are {world.size}; leave it out")


def usable_device(name: str) -> torch.device:
    """The device of that name; "auto" is a CUDA GPU where there is one, else the processor.

    MPS, which has no float64, is taken by its name alone.

    Raises:
        UsageError: nothing can be made there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        # Reading a number back also finds the devices that hold none, such as meta.
        torch.empty(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        here = ["auto", "cpu"] + [kind for kind in ("cuda", "mps") if getattr(torch, kind).is_available()]
        raise UsageError(f"--device {name} can't be used here; {', '.join(here)} can") from error
    return torch.device(name)


def shape_of(model: Model) -> ShapeConfig:
    """The preset's shape with what replaces it. Heads and MLP follow another width, unless `head_dim` is given."""
    sizes: dict[str, Any] = dict(model.shape)
    followed = {} if "head_dim" in sizes else {name: sizes[name] for name in ("dim", "heads") if name in sizes}
    shape = preset_named(model.preset).shape
    return dataclasses.replace(reshaped(shape, blocks=sizes.get("blocks"), context=model.context, **followed), **sizes)


def sizes_of(preset: Preset, shape: ShapeConfig) -> dict[str, int | None]:
    """What replaces the preset's shape: everything, or nothing where they are the same."""
    sizes = {name: getattr(shape, name) for name in SHAPE}
    same = all(size == getattr(preset, name) for name, size in sizes.items())
    return dict.fromkeys(SHAPE) if same else sizes
