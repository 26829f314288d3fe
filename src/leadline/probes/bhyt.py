"""Bounded hyperbolic tanh along depth: λ/κ against 1/√L, and the approximate second moment against the exact one.

Theorem 3.5 of arXiv 2601.09719: outputs vary less than with layer-norm scaling at every layer where λ/κ < 1/√L, L the
number of blocks. The authors' own settings exceed it at their depths (λ = 2, κ = 10 at 28 blocks: 0.2 against 0.189);
what the model at hand has is reported.

Before the MLP the norm takes `v2 = v1 + c λ_attention²/κ²` for the mean square of what it reads. Compared with the true
mean square per token; a ratio below 1 means that the norm sees too small an input and bounds it less.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError
from leadline.norms import BoundedTanhNorm, BoundedTanhReuse
from leadline.probes.watch import TokenBatch, measuring, run
from leadline.stacks import Stack
from leadline.stacks.sites import replace


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


def bhyt(
    stack: Stack, batches: Iterable[TokenBatch], *, on_batch: Callable[[], None] | None = None
) -> dict[str, Any] | None:
    """See `measure_stack`; None where no block of the model has the norm.

    The ratio is the mean over tokens of v2 over the exact mean square; low and high are its extremes.

    Raises:
        LeadlineError: there are no tokens.
    """
    norms = {name: [_norm_of(block, name) for block in _blocks(stack.model)] for name in ("attention", "mlp")}
    there = [norm for found in norms.values() for norm in found if norm is not None]
    if not there:
        return None
    bound = 1.0 / math.sqrt(stack.blocks)
    moments = [_Moments() for _ in range(stack.blocks)]
    tokens = 0
    with contextlib.ExitStack() as replaced:
        device = replaced.enter_context(measuring(stack.model))
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
        "kappa": there[0].kappa,
        "bound": bound,
        **{name: _bounds(found, bound) for name, found in norms.items()},
        "second_moment": {name: [result[name] for result in results] for name in results[0]},
    }


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
