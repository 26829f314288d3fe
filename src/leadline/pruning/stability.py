"""How alike two rankings, and two cuts, are: over seeds, the stability of a criterion.

Kendall's τ-b and Spearman's ρ compare the scores of all candidates; Jaccard compares the sets that are cut. A ranking
without any order (all scores equal) has no correlation with anything, which is None, not NaN.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scipy import stats

from leadline.errors import LeadlineError
from leadline.statistics import LEVEL, holm

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
NO_SPREAD = 1e-12
"""A standard error (of nats or of τ) that is no more than rounding."""


def kendall(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Kendall's τ-b in [-1, 1], ties counted as τ-b counts them."""
    return _correlation(stats.kendalltau, a, b)


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's rank correlation in [-1, 1]."""
    return _correlation(stats.spearmanr, a, b)


def jaccard(a: Collection[Hashable], b: Collection[Hashable]) -> float:
    """The share of what is in either that is in both; two empty sets are alike."""
    either = set(a) | set(b)
    return len(set(a) & set(b)) / len(either) if either else 1.0


@dataclass(frozen=True, kw_only=True)
class Stability:
    """Means over all pairs of seeds; None where no pair has a value.

    Attributes:
        kendall, spearman: of the scores.
        jaccard: of the cut set, by ratio.
        pairs: how many there are.
    """

    kendall: float | None
    spearman: float | None
    jaccard: dict[str, float]
    pairs: int


def stability(scores: Sequence[Sequence[float]], cuts: dict[str, Sequence[Collection[Hashable]]]) -> Stability | None:
    """The stability of a criterion; None with fewer than two seeds.

    Args:
        scores: by seed, of all candidates.
        cuts: by ratio, then by seed, what is cut.

    Raises:
        LeadlineError: the seeds have different numbers of candidates.
    """
    if len(scores) < 2:
        return None
    if len({len(one) for one in scores}) > 1:
        raise LeadlineError("rankings over models of different depth can't be compared")
    return Stability(
        kendall=pairwise(scores, kendall),
        spearman=pairwise(scores, spearman),
        jaccard={ratio: pairwise(sets, jaccard) or 0.0 for ratio, sets in cuts.items()},
        pairs=math.comb(len(scores), 2),
    )


def pairwise(values: Sequence[T], measure: Callable[[T, T], float | None]) -> float | None:
    """The mean of a measure over all pairs that have one."""
    found = [measure(a, b) for a, b in itertools.combinations(values, 2)]
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A mean difference and its 95 % interval.

    Attributes:
        low, high: None where there is none: too few seeds, or a difference that is the same for each, of which no seed
            says how far another would be off.
        p_value: of no difference, as `corrected` left it; None likewise.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the p-value is below 5 %, so that the interval excludes zero; None without one."""
        return None if self.p_value is None else self.p_value < 1 - LEVEL


def corrected(gaps: Mapping[K, Gap | None]) -> dict[K, Gap | None]:
    """The gaps with p-values after Holm's step-down correction over all of them; intervals stay what they are."""
    known = {name: gap for name, gap in gaps.items() if gap is not None and gap.p_value is not None}
    p_values = holm({name: gap.p_value or 0.0 for name, gap in known.items()})
    return {**gaps, **{name: dataclasses.replace(gap, p_value=p_values[name]) for name, gap in known.items()}}


def paired_gap(differences: Sequence[float]) -> Gap:
    """The mean of differences by seed, with Student's t interval over seeds."""
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return Gap(mean=mean)
    return _gap(mean, statistics.stdev(differences) / math.sqrt(len(differences)), len(differences))


def stability_gap(mine: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Gap | None:
    """The difference of two criteria's mean τ-b over pairs of seeds, its interval by the jackknife over seeds (ours).

    Pairs of seeds share seeds, so they are no independent values; leaving out one seed at a time is.

    Returns:
        None where one of them has no τ-b; without an interval below three seeds.
    """

    def gap(seeds: Sequence[int]) -> float | None:
        a = pairwise([mine[i] for i in seeds], kendall)
        b = pairwise([other[i] for i in seeds], kendall)
        return None if a is None or b is None else a - b

    everyone = list(range(len(mine)))
    mean = gap(everyone)
    if mean is None:
        return None
    without = [gap([i for i in everyone if i != left]) for left in everyone]
    known = [value for value in without if value is not None]
    if len(everyone) < 3 or len(known) < len(everyone):
        return Gap(mean=mean)
    n = len(known)
    error = math.sqrt((n - 1) / n * math.fsum((value - statistics.fmean(known)) ** 2 for value in known))
    return _gap(mean, error, n)


def _gap(mean: float, error: float, count: int) -> Gap:
    """By Student's t, from a standard error over so many seeds."""
    if error < NO_SPREAD:
        return Gap(mean=mean, low=mean, high=mean, p_value=1.0) if abs(mean) < NO_SPREAD else Gap(mean=mean)
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * error
    p_value = 2 * float(stats.t.sf(abs(mean) / error, count - 1))
    return Gap(mean=mean, low=mean - half, high=mean + half, p_value=p_value)


def _correlation(
    measure: Callable[[Sequence[float], Sequence[float]], Any], a: Sequence[float], b: Sequence[float]
) -> float | None:
    if len(a) < 2 or len(set(a)) < 2 or len(set(b)) < 2:
        return None
    value = float(measure(list(a), list(b)).statistic)
    return value if math.isfinite(value) else None
