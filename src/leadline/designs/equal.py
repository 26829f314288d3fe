"""Equal training FLOPs: the tokens, the depth or the width at which a variant costs what a reference costs.

    balance = solve(Side(design=resolve("prenorm"), shape=shape, tokens=512_000), resolve("cascade-a2"), vocab_size=257,
                    batch_tokens=1024)
    balance.variant.tokens, balance.residual

FLOPs are those of `count_flops`: forward and backward, the operators along depth included. How the three are solved,
and the bound on what is left over, are ours.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from leadline.choices import By
from leadline.designs.counting import count_flops, count_parameters
from leadline.designs.design import Design
from leadline.designs.presets import ShapeConfig
from leadline.errors import UsageError
from leadline.report.words import percent

WAYS: tuple[By, ...] = ("tokens", "depth", "width", "depth+tokens", "width+tokens")
RESIDUAL = 0.01
"""Equal means closer than this share of the reference's FLOPs."""
WIDTH_STEP = 8
MOST_BLOCKS = 4096
MOST_WIDTH = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """One of two models that should cost the same.

    Attributes:
        tokens: of training.
    """

    design: Design
    shape: ShapeConfig
    tokens: int

    def flops_per_token(self, vocab_size: int) -> int:
        """Of training, the operators along depth included."""
        return count_flops(self.design.decoder(self.shape, vocab_size)).training_total

    def parameters(self, vocab_size: int) -> int:
        """All of them."""
        return count_parameters(self.design.decoder(self.shape, vocab_size)).total


@dataclasses.dataclass(frozen=True, kw_only=True)
class Balance:
    """A variant that costs what the reference costs.

    Attributes:
        by: what was solved for.
        residual: the variant's training FLOPs over the reference's, minus one.
    """

    reference: Side
    variant: Side
    vocab_size: int
    by: By
    residual: float

    def rows(self) -> list[dict[str, object]]:
        """Both models as plain data: name, blocks, MLP width, FLOPs per token, tokens, FLOPs in all, parameters."""
        return [
            {
                "design": side.design.name,
                "blocks": side.shape.blocks,
                "hidden": side.shape.hidden,
                "flops_per_token": (per_token := side.flops_per_token(self.vocab_size)),
                "tokens": side.tokens,
                "flops": per_token * side.tokens,
                "parameters": side.parameters(self.vocab_size),
            }
            for side in (self.reference, self.variant)
        ]


def solve(
    reference: Side,
    variant: Design,
    *,
    vocab_size: int,
    batch_tokens: int,
    by: By = "tokens",
    shape: ShapeConfig | None = None,
) -> Balance:
    """The variant whose training costs what the reference's costs, within 1 %.

    Args:
        batch_tokens: tokens come in whole steps of so many.
        by: what may differ: "tokens", "depth" (the blocks) or "width" (that of the MLP, in multiples of 8); a "+tokens"
            takes what blocks or widths leave over up in tokens.
        shape: the variant's, before it is solved; the reference's unless given.

    Raises:
        UsageError: nothing comes within 1 %; names what does.
    """
    if by not in WAYS:
        raise UsageError(f"--by {by} is not known; {', '.join(WAYS)} work")
    if batch_tokens < 1 or reference.tokens < 1:
        raise UsageError(f"tokens={reference.tokens} and batch_tokens={batch_tokens} must be at least 1")
    side = Side(design=variant, shape=shape or reference.shape, tokens=reference.tokens)
    balance = _balanced(reference, side, vocab_size, batch_tokens, by)
    if abs(balance.residual) >= RESIDUAL:
        raise UsageError(_too_far(balance, side, batch_tokens))
    return balance


def _balanced(reference: Side, side: Side, vocab_size: int, batch_tokens: int, by: By) -> Balance:
    """The nearest that a way of balancing comes, however far off."""
    budget = reference.flops_per_token(vocab_size) * reference.tokens
    what, _, rest = by.partition("+")
    if what == "depth":
        side = _nearest(side, "blocks", 1, budget, vocab_size, MOST_BLOCKS)
    elif what == "width":
        side = _nearest(side, "hidden", WIDTH_STEP, budget, vocab_size, MOST_WIDTH)
    if by == "tokens" or rest:
        step = side.flops_per_token(vocab_size) * batch_tokens
        side = dataclasses.replace(side, tokens=max(1, round(budget / step)) * batch_tokens)  # the nearest whole step
    residual = side.flops_per_token(vocab_size) * side.tokens / budget - 1
    return Balance(reference=reference, variant=side, vocab_size=vocab_size, by=by, residual=residual)


def describe(balance: Balance) -> str:
    """Both models in a table, and what is left over between them."""
    rows = balance.rows()
    heads = ("design", "blocks", "MLP width", "FLOPs/token", "tokens", "training FLOPs", "parameters")
    forms = ("", "", "", ",", ",", ".4g", ",")
    lines = [heads, *([format(value, form) for value, form in zip(row.values(), forms, strict=True)] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    shown = [
        "  ".join(
            f"{cell:<{width}}" if column == 0 else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    off = f"equal by {balance.by}; the variant's training FLOPs are {percent(balance.residual, 2, sign=True)} off"
    return "\n".join([*shown, off])


def _nearest(side: Side, size: str, step: int, budget: int, vocab_size: int, most: int) -> Side:
    """The side whose cost is nearest to the budget, with another size in multiples of `step`, up to `most`.

    The cost grows with the size. The search sets out from one that works: a connection may not fit a stack of a few
    blocks.
    """

    def at(steps: int) -> Side:
        changed: dict[str, Any] = {size: step * steps}
        return dataclasses.replace(side, shape=dataclasses.replace(side.shape, **changed))

    def cost(steps: int) -> int:
        return at(steps).flops_per_token(vocab_size) * side.tokens

    most //= step
    start = max(1, getattr(side.shape, size) // step)
    low = high = start
    while cost(high) < budget and high < most:
        low, high = high, min(most, 2 * high)
    while cost(low) > budget and low > 1:
        low, high = low - max(1, low // 8), low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) < budget else (low, middle)
    return at(min((low, high), key=lambda steps: abs(cost(steps) - budget)))


def _too_far(nearest: Balance, side: Side, batch_tokens: int) -> str:
    """What to say of the nearest there is, and what comes near enough.

    Args:
        side: the variant, before it was solved.
    """
    found, vocab_size, by = nearest.variant, nearest.vocab_size, nearest.by
    residual = percent(nearest.residual, 1, sign=True)
    off = f"is {residual} off the reference's training FLOPs, not within {percent(RESIDUAL)}"
    per_token = nearest.reference.flops_per_token(vocab_size)
    # Whole steps are off by half a step at most, which is a share of the reference's tokens.
    share = found.flops_per_token(vocab_size) * batch_tokens / (per_token * nearest.reference.tokens)
    tokens = math.ceil(share * nearest.reference.tokens / (2 * RESIDUAL)) + 1
    if by == "tokens" or "+" in by:
        return (
            f"{found.design.name}: the nearest in whole steps of {batch_tokens} tokens {off}, because one step is "
            f"{percent(share, 1)} of them; --tokens {tokens} or more works, or a smaller batch"
        )
    ways: list[By] = ["tokens", "depth+tokens" if by == "depth" else "width+tokens"]
    works = [
        f"--by {way}"
        for way in ways
        if abs(_balanced(nearest.reference, side, vocab_size, batch_tokens, way).residual) < RESIDUAL
    ]
    works = works or [f"--by {ways[1]} with --tokens {tokens} or more"]
    what = f"{found.shape.blocks} blocks" if by == "depth" else f"an MLP width of {found.shape.hidden}"
    return (
        f"{found.design.name}: the nearest there is, {what}, {off}; {' and '.join(works)} "
        f"{'work' if len(works) > 1 else 'works'}: tokens take the rest up"
    )
