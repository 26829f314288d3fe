"""Means over the same sequences: their intervals, their ratios, and which of them can be told apart.

Sequences are the sample: a mean is Σ value / Σ tokens over them, its standard error that of a ratio of sums, and
Student's t with one degree of freedom less than sequences gives the bounds. Two means are told apart by the paired
difference, sequence by sequence; all pairs are tested together, with Holm's correction (1979), so that the chance of a
single false difference among them is at most 5 %. A ratio has Fieller's interval (1954). To use these is our
choice. Only sums and their products are kept, so memory doesn't grow with the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leadline.statistics import LEVEL, holm

Array = NDArray[np.float64]


class Bounds(NamedTuple):
    """A value with its 95 % interval; None where it isn't defined, or where the sequences are too few for bounds."""

    value: float | None
    low: float | None
    high: float | None

    def plain(self) -> dict[str, float | None]:
        """As JSON has it."""
        return self._asdict()


class PairedMeans:
    """Means per token of `count` quantities over sequences.

    Attributes:
        sequences: how many counted.
    """

    def __init__(self, count: int) -> None:
        self.count, self.sequences = count, 0
        # The last row and column belong to the tokens.
        self._sums = np.zeros(count + 1)
        self._products = np.zeros((count + 1, count + 1))

    def add(self, sums: Array, tokens: Array) -> None:
        """Some sequences: (B, count) sums over each one's tokens, and (B,) how many tokens each has. None may be 0."""
        rows = np.concatenate([sums, np.reshape(tokens, (-1, 1))], axis=1).astype(np.float64)
        rows = rows[rows[:, -1] > 0]
        self.sequences += len(rows)
        self._sums += rows.sum(axis=0)
        self._products += rows.T @ rows

    def intervals(self) -> list[Bounds]:
        """Every mean within its interval."""
        return [self.ratio(one, self._tokens()) for one in np.eye(self.count)]

    def share(self, first: int) -> Bounds:
        """What the first `first` quantities sum to over what all do; bounds only where that sum is told from zero."""
        return self.ratio([float(i < first) for i in range(self.count)], np.ones(self.count))

    def ratio(self, top: Sequence[float] | Array, bottom: Sequence[float] | Array) -> Bounds:
        """Σ top · sums over Σ bottom · sums, within Fieller's interval; each has a weight for every quantity."""
        a, b = (np.pad(np.asarray(w, dtype=np.float64), (0, self.count + 1 - len(w))) for w in (top, bottom))
        above, below, n = float(a @ self._sums), float(b @ self._sums), self.sequences
        if below == 0 or not math.isfinite(above / below):
            return Bounds(None, None, None)
        if n < 2:
            return Bounds(above / below, None, None)
        from scipy import stats

        off = (self._products - np.outer(self._sums, self._sums) / n) * n / (n - 1)
        t = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) ** 2
        # The values r for which the sum of (top − r · bottom) can't be told from zero.
        square = below**2 - t * float(b @ off @ b)
        middle = above * below - t * float(a @ off @ b)
        rest = above**2 - t * float(a @ off @ a)
        if square <= 0:
            return Bounds(above / below, None, None)
        half = math.sqrt(max(middle**2 - square * rest, 0.0)) / square
        return Bounds(above / below, middle / square - half, middle / square + half)

    def places(self, kept: Sequence[int] | None = None) -> list[tuple[int, int]] | None:
        """The lowest and the highest place that each mean may have among the `kept` ones, 1 being the smallest.

        A mean's lowest place is one above the number of means that are told to be smaller. None where a mean isn't
        finite.
        """
        chosen = list(range(self.count)) if kept is None else list(kept)
        if self.sequences == 0 or not np.isfinite(self._products).all():
            return None
        smaller = np.zeros((len(chosen), len(chosen)), dtype=bool)
        for i, j in self._told_apart(chosen):
            smaller[i, j] = True
        low, high = 1 + smaller.sum(axis=0), len(chosen) - smaller.sum(axis=1)
        return [(int(a), int(b)) for a, b in zip(low, high, strict=True)]

    def _told_apart(self, chosen: Sequence[int]) -> list[tuple[int, int]]:
        """The pairs (i, j) of places in `chosen` of which the first is told to be the smaller one, by Holm's rule."""
        pairs = [(i, j) for i in range(len(chosen)) for j in range(i)]
        tested = {(i, j): self._test(chosen[i], chosen[j]) for i, j in pairs}
        p_values = holm({pair: p for pair, (p, _) in tested.items()})
        apart = [(pair, tested[pair][1]) for pair, p in p_values.items() if p <= 1 - LEVEL]
        return [(i, j) if difference < 0 else (j, i) for (i, j), difference in apart]

    def _test(self, i: int, j: int) -> tuple[float, float]:
        """The p-value of a paired t-test, and the difference of the two means."""
        n, tokens = self.sequences, self._sums[-1]
        difference = float(self._sums[i] - self._sums[j]) / tokens
        size = max(abs(self._sums[i]), abs(self._sums[j])) / tokens
        # What is left of equal means is rounding.
        if n < 2 or abs(difference) <= 1e-12 * size:
            return 1.0, difference
        weights = np.zeros(self.count + 1)
        weights[[i, j, -1]] = 1.0, -1.0, -difference
        error = math.sqrt(max(float(weights @ self._products @ weights), 0.0) * n / (n - 1)) / tokens
        if error == 0:
            return 0.0, difference
        from scipy import stats

        return 2 * float(stats.t.sf(abs(difference) / error, n - 1)), difference

    def _tokens(self) -> Array:
        return np.eye(self.count + 1)[-1]


def place_rows(places: Sequence[tuple[int, int]] | None, count: int) -> dict[str, list[int | None]]:
    """`place_low` and `place_high` as JSON has them."""
    found: Sequence[tuple[int | None, int | None]] = [(None, None)] * count if places is None else places
    return {"place_low": [low for low, _ in found], "place_high": [high for _, high in found]}
