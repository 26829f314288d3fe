"""What the three benchmarks have in common: options, rows that fill up while a run goes on, and the result."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from leadline.bench import targets
from leadline.bench.results import Result, Row, Verdict, timed
from leadline.bench.rounds import Candidate, Clock, Say, Timings, run_rounds, timer_for
from leadline.bench.table import interval
from leadline.choices import Backend
from leadline.statistics import Median, median_of, ratios

TWO_PHASES = ", two phases"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How to measure; see `leadline bench models --help`."""

    backends: tuple[Backend, ...] = ()
    rounds: int
    warm: int
    dtype: torch.dtype = torch.float32
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    clock: Clock = "wall"
    check_only: bool = False

    @property
    def as_targeted(self) -> bool:
        """Whether targets are stated for this dtype and device; a subclass asks for the sizes too."""
        return self.dtype == torch.float32 and self.device.type == "cpu"

    @property
    def where(self) -> str:
        """Dtype and device, for a title."""
        return f"{str(self.dtype).removeprefix('torch.')} on {self.device}"

    def plain(self) -> dict[str, Any]:
        """As the JSON file keeps them."""
        return {
            **dataclasses.asdict(self),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
        }


class Run:
    """A benchmark while it runs.

    Attributes:
        notes: what a reader should know.
        rows: of the candidates by name, as far as they were checked.
        timings: of all that was timed.
    """

    def __init__(self, options: Options, notes: list[str], say: Say, until: Callable[[], bool]) -> None:
        self.options, self.notes, self.say, self.until = options, notes, say, until
        self.rows: dict[str, Row] = {}
        self.timings = Timings({})
        self.timer = timer_for(options.device, options.clock)

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """KeyboardInterrupt ends the block; what was measured stays."""
        try:
            yield
        except KeyboardInterrupt:
            self.timings = dataclasses.replace(self.timings, interrupted=True)

    def time(self, candidates: Iterable[Candidate]) -> None:
        """Times candidates in interleaved rounds; joins what was timed before."""
        options = self.options
        found = run_rounds(
            list(candidates), options.rounds, self.timer, warm=options.warm, say=self.say, until=self.until
        )
        self.timings = Timings({**self.timings.seconds, **found.seconds}, interrupted=found.interrupted)

    def timed(self, baseline: str) -> dict[str, Row]:
        """The rows with their times and ratios to the row of that name."""
        return {name: timed(row, self.timings, baseline) for name, row in self.rows.items()}

    def result(self, rows: Mapping[str, Row], stated_for: str, **words: Any) -> Result:
        """The result.

        Args:
            rows: with times and verdicts.
            stated_for: what targets are stated for.
            words: fields of `Result`.
        """
        if not self.options.as_targeted:
            self.notes.append(f"targets are stated for {stated_for}, in float32 on a CPU")
        return Result(
            options=self.options.plain(),
            rows=tuple(rows.values()),
            notes=tuple(dict.fromkeys([*self.notes, *_one_phase_notes(rows)])),
            interrupted=self.timings.interrupted,
            rounds=self.timings.rounds,
            **words,
        )


def time_verdict(ratio: Median, target: float) -> Verdict:
    """Whether a ratio of times meets its target."""
    return Verdict(what="time", target=target, met=targets.at_most(ratio, target), by_median=ratio.median <= target)


def _one_phase_notes(rows: Mapping[str, Row]) -> list[str]:
    """What two phases take beside one phase in the same round, in words: a note for each design and backend."""
    notes = []
    for row in rows.values():
        one = rows.get(row.name.replace(TWO_PHASES, ""), row)
        if one is not row and row.seconds and one.seconds:
            found = median_of(ratios(row.seconds, one.seconds))
            notes.append(f"{row.name} takes {interval(found, 3)} times as long as in one phase, in the same round")
    return notes
