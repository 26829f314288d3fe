"""What a run does to gradients and depth on purpose, after arXiv 2606.26538, and what is said of it.

*Equalise*: in each step the gradients of all blocks are rescaled to the same L2 norm, the mean of the blocks' norms,
before clipping. *Equalise updates*: what the optimiser adds to the parameters of each block is rescaled to the mean of
the blocks' norms, in the manner of layer-wise optimisers such as LAMB (arXiv 1904.00962) [ours]: AdamW divides by a
gradient's own size, and so undoes the first. *Repeat*: the last blocks run several times with the same parameters
(`DecoderConfig.repeat`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator

import torch

from leadline.designs import count_flops
from leadline.errors import UsageError
from leadline.models import DecoderConfig
from leadline.models.config import RepeatConfig
from leadline.report.words import percent
from leadline.training.config import RunConfig, parse_repeat
from leadline.training.gradient_share import GradientShare
from leadline.training.layerskip import LayerSkip

LARGEST_FACTOR = float(torch.finfo(torch.float32).max)


def repeated(model: DecoderConfig, repeat: str | None) -> DecoderConfig:
    """The model with its last blocks repeated, as `--repeat` says.

    Raises:
        UsageError: there are not so many blocks.
    """
    if repeat is None:
        return model
    last, times = parse_repeat(repeat)
    if last > len(model.layers):
        raise UsageError(f"--repeat {repeat} repeats {last} blocks; this model has {len(model.layers)}")
    return dataclasses.replace(model, repeat=RepeatConfig(last=last, times=times))


@torch.no_grad()
def equalise(share: GradientShare) -> None:
    """Rescales the gradients in place, so that every block's has the mean of the blocks' norms.

    Which parameter belongs to which block is what `share` says, so a shared one counts once; what is outside of blocks
    stays. A block without a gradient, or with one of zero, stays as it is and takes no part in the mean.

    Args:
        share: after `add` of this step; its `last` are the blocks' norms.
    """
    norms = {block: norm for block, norm in enumerate(share.last) if norm is not None and norm > 0}
    if not norms:
        return
    target = math.fsum(norms.values()) / len(norms)
    for block, parameters in enumerate(share.by_block()):
        factor = target / norms[block] if block in norms else 1.0
        grads = [p.grad for p in parameters if p.grad is not None]
        if grads and factor < LARGEST_FACTOR:
            torch._foreach_mul_(grads, factor)


@contextlib.contextmanager
def equalised_updates(share: GradientShare, optimiser: torch.optim.Optimizer) -> Iterator[None]:
    """Around `optimiser.step()`: every block's update gets the mean of the blocks' norms.

    A block's update is what the step adds to its parameters, weight decay apart where that is decoupled (AdamW); the
    decay stays as it is. What is outside of blocks stays. A block that the step does not move takes no part in the
    mean. Costs a copy of the blocks' parameters for the time of the step.

    Args:
        share: knows which parameters are whose; a shared one counts once.
    """
    blocks = [[p for p in parameters if p.grad is not None] for parameters in share.by_block()]
    kept = {
        parameter: 1.0 - group["lr"] * group["weight_decay"] if isinstance(optimiser, torch.optim.AdamW) else 1.0
        for group in optimiser.param_groups
        for parameter in group["params"]
    }
    before = [[parameter.detach() * kept[parameter] for parameter in parameters] for parameters in blocks]
    yield
    with torch.no_grad():
        pairs = [zip(now, old, strict=True) for now, old in zip(blocks, before, strict=True)]
        updates = [[parameter - start for parameter, start in pair] for pair in pairs]
        norms = [math.sqrt(math.fsum(float(u.double().square().sum()) for u in update)) for update in updates]
        moved = [norm for norm in norms if norm > 0]
        for parameters, old, update, norm in zip(blocks, before, updates, norms, strict=True):
            factor = math.fsum(moved) / len(moved) / norm if norm > 0 else 1.0
            for parameter, start, added in zip(parameters, old, update, strict=True):
                parameter.copy_(start + factor * added)


def check_layerskip(skip: LayerSkip, model: DecoderConfig) -> None:
    """Raises UsageError where a model can't be trained so."""
    config = skip.config.early_exit
    if skip.exits and skip.blocks < 2:
        raise UsageError(f"--exit-loss {config.exit_loss:g} needs 2 blocks or more; this model has {skip.blocks}")
    if skip.exits and getattr(model.connection, "memory", "store") == "invert":
        raise UsageError(
            f"--exit-loss {config.exit_loss:g} reads the streams between blocks, which memory=invert can't give back; "
            "memory=store works"
        )


def notes(config: RunConfig, model: DecoderConfig, skip: LayerSkip) -> list[str]:
    """What a run with interventions should say of itself, and what its FLOPs count."""
    said = []
    if config.interventions.repeat is not None:
        last, times = parse_repeat(config.interventions.repeat)
        said.append(
            f"the last {last} of {len(model.layers)} blocks run {times} times with the same parameters: "
            f"{skip.blocks} blocks run, and FLOPs count them all"
        )
    if config.interventions.equalise:
        said.append(_equalise_note(config))
    if config.interventions.equalise_updates:
        said.append("the updates of all blocks are rescaled to the same norm in each step, weight decay apart")
    if skip.drops:
        saved = sum(skip.rates()) / skip.blocks
        said.append(
            f"layer dropout leaves out {percent(saved, 1)} of the blocks' work on average; FLOPs count every block, "
            "and evaluation runs them all"
        )
    if skip.exits:
        exits = skip.mean_exits
        said.append(
            f"{exits:.1f} early exits a step on average add about {3 * exits * count_flops(model).head:,.0f} FLOPs "
            "a token for the head, which the FLOPs don't count; the loss that is told is the final one, and the early "
            f"ones weigh {config.early_exit.exit_loss:g} beside its 1"
        )
    return said


def _equalise_note(config: RunConfig) -> str:
    if config.optimizer.optimizer == "sgd":
        return "gradients are equalised over blocks; the gradient share is that of the raw gradients"
    return (
        "gradients are equalised over blocks, which AdamW nearly undoes: it divides each parameter's gradient by its "
        "own size; --optimizer sgd does not. The gradient share is that of the raw gradients"
    )
