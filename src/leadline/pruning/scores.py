"""Importance of a unit by its weights, by its absence, and by what it changes of the stream.

Magnitude, Taylor, ablation; Block Influence (arXiv 2403.03853) and the angle across a window of contiguous blocks
(arXiv 2403.17887). A zero vector counts as orthogonal to any other, as in `leadline.probes.similarity`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError, UsageError
from leadline.probes.ablation import LossRise, losses_without
from leadline.probes.passes import Measure, chunks, cosines, run_measures, wide
from leadline.probes.similarity import MOST_TOKENS, BlockCosines
from leadline.probes.watch import IGNORED, TokenBatch, measuring
from leadline.pruning.text import cross_entropy_sum
from leadline.stacks import Stack, Unit

Progress = Callable[[int, int], None]
"""Receives how many of how many passes are done."""


def magnitude(stack: Stack, kind: str = "block") -> list[float]:
    """`Σ|w|` over a unit's parameters, in the order of `stack.units(kind)`. A shared parameter counts once."""
    return [_total(value.detach().abs() for value in stack.parameters_of(unit).values()) for unit in stack.units(kind)]


def taylor(
    stack: Stack, batches: Sequence[TokenBatch], kind: str = "block", progress: Progress = lambda done, of: None
) -> list[float]:
    """`Σ|Σ_batches w·∂L/∂w|` over a unit's parameters: what the loss changes by to first order without them.

    L is the mean loss over all tokens, in evaluation mode; gradients are summed over batches before the absolute value
    is taken. The model's own `.grad` is left alone. Beside the weights, memory holds these sums in float32, and one
    parameter's gradient at a time.

    Raises:
        LeadlineError: there are no tokens.
    """
    of_unit = [list(stack.parameters_of(unit).values()) for unit in stack.units(kind)]
    parameters = list({id(p): p for group in of_unit for p in group}.values())
    own = [(p, p.requires_grad, p.grad) for p in parameters]
    sums: dict[int, Tensor] = {}
    count = sum(int((batch.targets != IGNORED).sum()) for batch in batches)
    if count == 0:
        raise LeadlineError("there are no tokens to measure on")

    def add(parameter: nn.Parameter) -> None:
        grad, parameter.grad = parameter.grad, None
        if grad is not None:
            wide = grad if grad.dtype == torch.float64 else grad.float()
            sums[id(parameter)] = sums[id(parameter)].add_(wide) if id(parameter) in sums else wide

    hooks = []
    try:
        for p in parameters:
            p.grad = None
            hooks.append(p.requires_grad_(True).register_post_accumulate_grad_hook(add))
        with measuring(stack.model), torch.enable_grad():
            for done, batch in enumerate(batches, start=1):
                logits = stack.logits(batch.tokens.to(stack.device))
                loss = cross_entropy_sum(logits, batch.targets.to(stack.device)) / count
                torch.autograd.backward(loss, inputs=parameters)
                progress(done, len(batches))
    finally:
        for hook in hooks:
            hook.remove()
        for p, flag, grad in own:
            p.requires_grad_(flag)
            p.grad = grad
    return [_total((p.detach() * sums[id(p)]).abs() for p in group if id(p) in sums) for group in of_unit]


def ablation(
    stack: Stack,
    batches: Sequence[TokenBatch],
    candidates: Sequence[Sequence[Unit]],
    progress: Progress = lambda done, of: None,
) -> list[float]:
    """ΔM: by how much the mean loss rises, in nats a token, when a candidate is skipped. Negative: better without.

    Args:
        candidates: what is skipped together, each: one unit, or all runs of a shared block.

    Raises:
        LeadlineError: there are no tokens.
    """
    rise = LossRise(len(candidates), resamples=0)
    with measuring(stack.model):
        for done, batch in enumerate(batches, start=1):
            losses = [losses_without(stack, batch, candidate) for candidate in ((), *candidates)]
            rise.add(losses, batch.targets.shape[-1])
            progress(done, len(batches))
    return rise.rises()


def _total(values: Iterable[Tensor]) -> float:
    return math.fsum(float(value.sum(dtype=torch.float64)) for value in values)


ADDS_UP = 0.05
"""Relative; a bfloat16 stream is off by less, and a connection that mixes or gates by more."""


def similarity(stack: Stack, batches: Iterable[TokenBatch], kind: str = "block") -> list[float]:
    """Block Influence `1 - E cos(x_i, x_{i+1})` of every unit, in the order of `stack.units(kind)`.

    For a block `x_i` and `x_{i+1}` are what it reads and what it leaves behind (see `StackWatcher.on_block`). For a
    sublayer they are the residual stream before and after it, which exists in additive streams alone.

    Raises:
        UsageError: sublayers of a stack whose stream is not the sum of their outputs.
        LeadlineError: there are no tokens.
    """
    measure = BlockCosines(stack) if kind == "block" else SublayerCosines(stack)
    run_measures(stack, batches, [measure])
    return measure.influence()


def window_distances(stack: Stack, batches: Iterable[TokenBatch], sizes: Collection[int]) -> dict[int, list[float]]:
    """The angle `arccos(cos)/π` across every window of n contiguous blocks, for each n in `sizes`.

    Returns:
        By n: one number per first block, 0 to L - n. It compares what the window's first block reads with what its
        last leaves behind, averaged over tokens.

    Raises:
        LeadlineError: there are no tokens.
    """
    measure = BlockCosines(stack)
    run_measures(stack, batches, [measure])
    return {n: measure.window_angles(n) for n in sorted(set(sizes))}


class SublayerCosines(Measure):
    """Cosines between the stream before and after each sublayer, put together from the sublayers' outputs."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self._cosines = dict.fromkeys(stack.units("sublayer"), 0.0)
        self._outputs: list[tuple[str, Tensor]] = []

    def on_sublayer(self, block: int, sublayer: str, output: Tensor) -> None:
        self._outputs.append((sublayer, wide(output)))

    @torch.no_grad()
    def on_block(self, block: int, before: Tensor, after: Tensor) -> None:
        stream = [wide(before)]
        for _, output in self._outputs:
            stream.append(stream[-1] + output)
        if (stream[-1] - wide(after)).norm() > ADDS_UP * wide(after).norm():
            raise UsageError(
                "--criterion similarity of sublayers needs a stream that is the sum of their outputs, and this model's "
                "is not; --unit block works, and so do taylor, magnitude, ablation, cfp and random"
            )
        for x_SnD in chunks(stream, MOST_TOKENS):
            totals = cosines(x_SnD).sum(dim=0).diagonal(1).tolist()
            for (name, _), total in zip(self._outputs, totals, strict=True):
                self._cosines[Unit(block, name)] += total
        self._outputs = []

    def influence(self) -> list[float]:
        """One number per sublayer."""
        if self.tokens == 0:
            raise LeadlineError("there are no tokens to measure on")
        return [1.0 - total / self.tokens for total in self._cosines.values()]
