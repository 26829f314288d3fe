"""What a benchmark found, as plain data: the same for the table, the picture and the JSON file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from leadline.bench.rounds import Timings
from leadline.statistics import Median, median_of, ratios

VERSIONED = ("torch", "triton", "hyper-connections", "flash-linear-attention", "liger-kernel", "flash-attn-res")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """A target, and whether it is met.

    Attributes:
        what: time, saved, or "faster than" something.
        met: by the interval's better end.
        by_median: whether the median itself reaches it; a wide interval alone says little.
        found: what was measured, where it stands nowhere else in the row: a speed-up.
    """

    what: str
    target: float
    met: bool
    by_median: bool
    found: Median | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One candidate.

    Attributes:
        name: unique in the run.
        group: what stands together: an operator's case; empty for models.
        label: what the candidate is within its group: a design, a backend, a peer.
        backend: what runs its operators; "-" where it has none.
        seconds: of every round.
        ratios: to the baseline, formed within each round.
        time, ratio: their medians; None where nothing was measured, or a check failed.
        numbers: what else was counted: bytes.
        failed: what went wrong in its check; empty where it passed.
        verdicts: the targets that apply.
    """

    name: str
    group: str = ""
    label: str
    backend: str
    seconds: list[float] = dataclasses.field(default_factory=list)
    ratios: list[float] = dataclasses.field(default_factory=list)
    time: Median | None = None
    ratio: Median | None = None
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    failed: str = ""
    verdicts: tuple[Verdict, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A whole run.

    Attributes:
        bench: models, ops or decode.
        title: what was measured, in a line.
        method: how, in sentences.
        baseline: what ratios are to, in words.
        options: as asked for and resolved.
        machine: processor, versions.
        rows: the candidates.
        notes: what a reader should know: what was left out, and why.
        interrupted: whether it was stopped early.
        rounds: finished ones.
    """

    bench: str
    title: str
    method: str
    baseline: str
    options: Mapping[str, Any]
    machine: Mapping[str, Any]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    rounds: int = 0

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return any(row.failed for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Plain data, every round's numbers included."""
        return {**dataclasses.asdict(self), "versions": versions()}


def timed(row: Row, timings: Timings, baseline: str) -> Row:
    """The row with its times and its ratios to the baseline; without either where nothing was measured."""
    seconds = timings.seconds.get(row.name, [])[: timings.rounds]
    base = timings.seconds.get(baseline, [])[: timings.rounds]
    if not seconds:
        return row
    found = ratios(seconds, base) if base else []
    return dataclasses.replace(
        row,
        seconds=seconds,
        ratios=found,
        time=median_of(seconds),
        ratio=median_of(found) if found else None,
    )


def versions() -> dict[str, str]:
    """Of what takes part, where it is installed."""
    found = {}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
