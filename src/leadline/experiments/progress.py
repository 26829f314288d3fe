"""How far the runs are and how long they still take: a table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from leadline.experiments.jobs import Display, Job
from leadline.progress import verbosity
from leadline.report.words import duration, percent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_SECONDS = 5.0
STOPPING = "interrupted: the runs save; the same command continues where they were"
TRAINING_SHARE = 0.93
"""Of a run's time, by experience; the rest is starting and measuring along depth."""


@dataclass
class _State:
    job: Job
    began: float | None = None
    ended: float | None = None
    first: float = 0.0
    share: float = 0.0
    loss: float | None = None
    speed: float | None = None
    measuring: float | None = None
    """Since when it measures, which moves no share."""


class Tracker:
    """The arithmetic of time left, apart from any display.

    Args:
        slots: how many jobs run at a time.
        clock: in seconds.
    """

    def __init__(self, jobs: Sequence[Job], slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.slots = slots
        self.states = {job.folder.name: _State(job) for job in jobs if not job.done}
        self.skipped = len(jobs) - len(self.states)

    def started(self, job: Job) -> None:
        self.states[job.folder.name].began = self.clock()

    def event(self, job: Job, event: dict[str, Any]) -> None:
        state = self.states[job.folder.name]
        if event.get("event") == "measuring":
            state.measuring, state.share = self.clock(), TRAINING_SHARE
            return
        share = TRAINING_SHARE * min(1.0, event.get("tokens", 0) / max(1, job.tokens))
        if state.loss is None:
            # What an earlier, interrupted run did took no time of this one.
            state.first = share
        state.share = share
        state.loss, state.speed = event.get("loss"), event.get("tokens_per_second")

    def ended(self, job: Job, error: str | None) -> None:
        state = self.states[job.folder.name]
        state.ended = self.clock()
        if error is None:
            state.share = 1.0

    @property
    def running(self) -> list[_State]:
        return [s for s in self.states.values() if s.began is not None and s.ended is None]

    @property
    def finished(self) -> int:
        """Jobs that are over, those of earlier runs of the same command too."""
        return self.skipped + sum(s.ended is not None for s in self.states.values())

    @property
    def total(self) -> int:
        return self.skipped + len(self.states)

    def seconds_left(self) -> float | None:
        """The time until the last job ends, as the queue will be worked off.

        None before there is a speed, and while a run measures longer than it should take.
        """
        rate = self._rate(self.states.values())
        if rate is None:
            return None
        ends = [self._left(state, rate) for state in self.running]
        if any(end < 0 for end in ends):
            return None
        ends += [0.0] * max(0, self.slots - len(ends))
        waiting = sorted((s.job.cost for s in self.states.values() if s.began is None), reverse=True)
        for cost in waiting:
            ends.sort()
            ends[0] += cost / rate
        return max(ends, default=0.0)

    def _left(self, state: _State, rate: float) -> float:
        own = self._rate([state]) if state.share - state.first > 0.02 else None
        left = state.job.cost * (1 - state.share) / (own or rate)
        return left if state.measuring is None else left - (self.clock() - state.measuring)

    def _rate(self, states: Any) -> float | None:
        """Cost done in a second of one worker."""
        done = seconds = 0.0
        for state in states:
            if state.began is not None and state.share > state.first:
                done += state.job.cost * (state.share - state.first)
                until = state.measuring if state.ended is None else state.ended
                seconds += (self.clock() if until is None else until) - state.began
        return done / seconds if done > 0 and seconds > 0 else None


class _Tracked(Display):
    """A display of what a tracker knows."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    def started(self, job: Job) -> None:
        self.tracker.started(job)

    def event(self, job: Job, event: dict[str, Any]) -> None:
        self.tracker.event(job, event)
        self.tick()


class PlainDisplay(_Tracked):
    """Lines of text: starts and ends at once, progress at most every few seconds."""

    def __init__(self, tracker: Tracker, stream: TextIO | None = None, every: float = PLAIN_SECONDS) -> None:
        super().__init__(tracker)
        self.stream = stream or sys.stderr
        self.every = every
        self._last = tracker.clock()
        if tracker.skipped:
            self._say(f"{tracker.skipped} of {tracker.total} runs are done already")

    def ended(self, job: Job, error: str | None) -> None:
        self.tracker.ended(job, error)
        outcome = "done" if error is None else f"FAILED: {error}"
        self._say(f"[{self.tracker.finished}/{self.tracker.total}] {job.label}: {outcome}")

    def tick(self) -> None:
        now = self.tracker.clock()
        if now - self._last < self.every:
            return
        self._last = now
        running = ", ".join(f"{s.job.label} {_what(s)}" for s in self.tracker.running)
        left = duration(self.tracker.seconds_left())
        self._say(f"[{self.tracker.finished}/{self.tracker.total}] {running}; time left {left}")

    def stopping(self) -> None:
        self._say(STOPPING)

    def _say(self, line: str) -> None:
        print(line, file=self.stream, flush=True)


class LiveDisplay(_Tracked):
    """A table that is redrawn twice a second, on a terminal."""

    def __init__(self, tracker: Tracker, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(tracker)
        self._live = Live(console=console or Console(stderr=True), refresh_per_second=2, get_renderable=self._draw)
        self._live.start()

    def ended(self, job: Job, error: str | None) -> None:
        from rich.text import Text

        self.tracker.ended(job, error)
        if error is not None:
            self._live.console.print(Text(f"{job.label} failed: {error}", style="red"))

    def stopping(self) -> None:
        self._live.console.print(STOPPING)

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        tracker = self.tracker
        table = Table.grid(padding=(0, 2))
        for state in tracker.running:
            bar = ProgressBar(total=1.0, completed=state.share, width=24)
            table.add_row(Text(state.job.label), bar, Text(_what(state)))
        left = duration(tracker.seconds_left())
        table.add_row(Text(f"{tracker.finished} of {tracker.total} runs", style="bold"), "", Text(f"time left {left}"))
        return table


def display_for(jobs: Sequence[Job], slots: int) -> Display:
    """The display that suits the standard error stream."""
    if verbosity() < 0:
        return Display()
    tracker = Tracker(jobs, slots)
    return LiveDisplay(tracker) if sys.stderr.isatty() else PlainDisplay(tracker)


def _what(state: _State) -> str:
    if state.measuring is not None:
        return "measuring along depth"
    if state.loss is None:
        return "starting"
    speed = f", {state.speed:,.0f} {state.job.unit}/s" if state.speed else ""
    return f"{percent(state.share / TRAINING_SHARE)}, loss {state.loss:.3f}{speed}"
