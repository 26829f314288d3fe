"""Bounded hyperbolic tanh along depth: λ/κ against 1/√L, variances, the approximate second moment against the exact.

Theorem 3.5 of arXiv 2601.09719: outputs vary less than with layer-norm scaling (LNS) at every layer where λ/κ < 1/√L, L
the number of blocks. With a gain of one the norm's output has a variance of at most (λ/κ)², and LNS's in block l 1/l,
which is no less than 1/L. The authors' own settings exceed the bound at their depths (λ = 2, κ = 10 at 28 blocks: 0.2
against 0.189). What a model has is reported, and so are the variances that result, gains included; `variance_order`
compares two models, since where the condition is not met the order may hold or not.

Before the MLP the norm takes `v2 = v1 + c λ_attention²/κ²` for the mean square of what it reads. Compared with the true
mean square per token; a ratio below 1 means that the norm sees too small an input and bounds it less.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError
from leadline.norms import BoundedTanhNorm, BoundedTanhReuse
from leadline.probes.passes import wide
from leadline.probes.watch import TokenBatch, measuring, run
from leadline.stacks import Stack, StackWatcher
from leadline.stacks.sites import replace

SUBLAYERS = ("attention", "mlp")
VARIANCES = (*SUBLAYERS, "blocks")


class _Moments:
    """Sums over tokens of one norm's approximate and exact second moments, and of their ratio."""

    def __init__(self) -> None:
        self.tokens = self.compared = 0
        self.approximate = self.exact = self.ratio = 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, approximate: Tensor, exact: Tensor) -> None:
        approximate = approximate.double().expand_as(exact)
        self.tokens += exact.numel()
        self.approximate += float(approximate.sum())
        self.exact += float(exact.sum())
        ratio = (approximate / exact)[exact > 0]
        if ratio.numel():
            self.compared += ratio.numel()
            self.ratio += float(ratio.sum())
            self.low, self.high = min(self.low, float(ratio.min())), max(self.high, float(ratio.max()))

    def result(self) -> dict[str, float | None]:
        seen = self.tokens > 0
        compared = self.compared > 0
        return {
            "approximate": self.approximate / self.tokens if seen else None,
            "exact": self.exact / self.tokens if seen else None,
            "ratio": self.ratio / self.compared if compared else None,
            "ratio_low": self.low if compared else None,
            "ratio_high": self.high if compared else None,
        }


class _Variance:
    """The variance over the width, averaged over tokens."""

    def __init__(self) -> None:
        self.tokens, self.total = 0, 0.0

    def add(self, x: Tensor) -> None:
        variance = wide(x).var(dim=-1, correction=0)
        self.tokens += variance.numel()
        self.total += float(variance.sum())

    def mean(self) -> float | None:
        return self.total / self.tokens if self.tokens else None


class _BlockOutputs(StackWatcher):
    def __init__(self, sums: Sequence[_Variance]) -> None:
        self.sums = sums

    def on_block(self, block: int, before: Tensor, after: Tensor) -> None:
        self.sums[block].add(after)


def bhyt(
    stack: Stack, batches: Iterable[TokenBatch], *, on_batch: Callable[[], None] | None = None
) -> dict[str, Any] | None:
    """See `measure_stack`; None where no block of the model has the norm, or the factor of layer-norm scaling.

    The ratio is the mean over tokens of v2 over the exact mean square; low and high are its extremes.

    Raises:
        LeadlineError: there are no tokens.
    """
    blocks = _blocks(stack.model)
    norms = {name: [_norm_of(block, name) for block in blocks] for name in SUBLAYERS}
    there = [norm for found in norms.values() for norm in found if norm is not None]
    if not there and all(getattr(block, "norm_scale", 1.0) == 1.0 for block in blocks):
        return None
    bound = 1.0 / math.sqrt(stack.blocks)
    moments = [_Moments() for _ in blocks]
    variances = {name: [_Variance() for _ in blocks] for name in VARIANCES}
    tokens = 0
    with contextlib.ExitStack() as replaced:
        device = replaced.enter_context(measuring(stack.model))
        replaced.enter_context(stack.watching(_BlockOutputs(variances["blocks"])))
        for name in SUBLAYERS:
            _watch_inputs(replaced, [getattr(block, name, None) for block in blocks], variances[name])
        for norm, sums in zip(norms["mlp"], moments, strict=True):
            if isinstance(norm, BoundedTanhReuse):
                replace(replaced, norm, "reuse", _watched_reuse(norm, sums))
        for batch in batches:
            tokens += run(stack.model, [batch], device)
            if on_batch is not None:
                on_batch()
    if tokens == 0:
        raise LeadlineError("there are no tokens to measure on")
    results = [sums.result() for sums in moments]
    return {
        "tokens": tokens,
        "kappa": there[0].kappa if there else None,
        "bound": bound,
        **{name: _bounds(found, bound) for name, found in norms.items()},
        "variance": {name: [sums.mean() for sums in found] for name, found in variances.items()},
        "second_moment": {name: [result[name] for result in results] for name in results[0]},
    }


def variance_order(bounded: Mapping[str, Any], scaled: Mapping[str, Any]) -> dict[str, Any]:
    """Theorem 3.5 on two measured models: whether its condition is met, and whether its order holds.

    Args:
        bounded: what `bhyt` returns for a model with bounded tanh.
        scaled: the same for one with layer-norm scaling, of as many blocks.

    Returns:
        `condition`, whether |λ|/κ < 1/√L at every norm; and for `attention`, `mlp` (the norms' outputs) and `blocks`
        (the blocks' outputs) one truth value per block: whether the first model's variance is below the second's, None
        where one of them was not measured.

    Raises:
        LeadlineError: the models differ in depth, or the first one has no bounded tanh.
    """
    met = [below for name in SUBLAYERS for below in bounded[name]["below"] if below is not None]
    if not met:
        raise LeadlineError("the first model has no bounded tanh, so Theorem 3.5 says nothing of it")
    order: dict[str, Any] = {"condition": all(met)}
    for name in VARIANCES:
        one, other = bounded["variance"][name], scaled["variance"][name]
        if len(one) != len(other):
            raise LeadlineError("the models differ in depth; two of as many blocks can be compared")
        order[name] = [None if a is None or b is None else a < b for a, b in zip(one, other, strict=True)]
    return order


def _watch_inputs(
    replaced: contextlib.ExitStack, modules: Sequence[nn.Module | None], sums: Sequence[_Variance]
) -> None:
    """Adds what each sublayer computes on, its norm's output, until the context ends; repeated ones take turns."""
    places: dict[nn.Module, list[_Variance]] = {}
    for module, place in zip(modules, sums, strict=True):
        if module is not None:
            places.setdefault(module, []).append(place)
    for module, own in places.items():
        turns = itertools.cycle(own)
        hook = module.register_forward_pre_hook(lambda _, inputs, turns=turns: next(turns).add(inputs[0]))
        replaced.callback(hook.remove)


def _bounds(norms: list[BoundedTanhNorm | None], bound: float) -> dict[str, list[Any]]:
    lambdas = [None if norm is None else float(norm.lam.detach()) for norm in norms]
    ratios = [
        None if norm is None or lam is None else lam / norm.kappa for norm, lam in zip(norms, lambdas, strict=True)
    ]
    return {"lambda": lambdas, "ratio": ratios, "below": [None if r is None else abs(r) < bound for r in ratios]}


def _watched_reuse(norm: BoundedTanhReuse, sums: _Moments) -> Callable[..., Tensor]:
    inner = norm.reuse

    def reuse(x: Tensor, moment: Tensor, lam_first: Tensor, positions: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            c = norm.c.double()
            if norm.position_aware and positions is not None:
                c = c * norm.length / (positions.unsqueeze(-1) + 1)
            approximate = moment.double() + c * lam_first.double().square() / norm.kappa**2
            sums.add(approximate, x.double().square().mean(dim=-1, keepdim=True))
        return inner(x, moment, lam_first, positions)

    return reuse


def _blocks(model: nn.Module) -> list[nn.Module]:
    blocks = getattr(model, "blocks", None)
    return list(blocks) if isinstance(blocks, nn.ModuleList) else []


def _norm_of(block: nn.Module, sublayer: str) -> BoundedTanhNorm | None:
    norm = getattr(block, f"{sublayer}_norm", None)
    return norm if isinstance(norm, BoundedTanhNorm) else None
