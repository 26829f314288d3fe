"""Interleaved timing: each round runs every candidate once, in an order that changes from round to round.

What disturbs a machine for a while then disturbs all candidates alike, and a ratio formed within a round is free of it.
Nothing is flushed: caches and the allocator are as a training loop leaves them.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from leadline.training.memory import keep_freed_memory

Clock = Literal["wall", "process"]
Timer = Callable[[Callable[[], object]], float]
"""Runs what it is given and returns the seconds it took."""

Say = Callable[[str], None]
"""Where progress goes: a line at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """What is timed.

    Attributes:
        name: unique in a run.
        call: the work.
        after: what follows each turn, untimed: dropping gradients.
        calls: how often the work is done in one turn; the time is divided by it.
    """

    name: str
    call: Callable[[], object]
    after: Callable[[], object] = lambda: None
    calls: int = 1


@dataclasses.dataclass(frozen=True)
class Timings:
    """Seconds of every candidate by round; all lists are equally long.

    Attributes:
        interrupted: whether someone stopped it; unfinished rounds are left out.
    """

    seconds: dict[str, list[float]]
    interrupted: bool = False

    @property
    def rounds(self) -> int:
        """Finished rounds."""
        return min((len(values) for values in self.seconds.values()), default=0)


def on_clock(clock: Callable[[], float]) -> Timer:
    """A timer that reads a clock before and after."""

    def timer(call: Callable[[], object]) -> float:
        begin = clock()
        call()
        return clock() - begin

    return timer


def on_gpu(call: Callable[[], object]) -> float:
    """Times with events on the current GPU, from an idle GPU until it is idle again."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def timer_for(device: torch.device, clock: Clock) -> Timer:
    """Events on a GPU; elsewhere wall time, or this process's time on all its threads."""
    if device.type == "cuda":
        return on_gpu
    return on_clock(time.perf_counter if clock == "wall" else time.process_time)


def what_is_timed(device: torch.device, clock: Clock) -> str:
    """The clock in words."""
    if device.type == "cuda":
        return "time between two events on the GPU, synchronised before and after"
    return "wall time" if clock == "wall" else "processor time of all threads"


def order(count: int, number: int) -> list[int]:
    """The order of round `number`: it starts one candidate later every second round, and runs backwards in between.

    So everyone comes early as often as late, and nobody always follows the same other one.
    """
    rotated = [(number // 2 + place) % count for place in range(count)]
    return rotated[::-1] if number % 2 else rotated


def calls_for(call: Callable[[], object], timer: Timer, at_least: float) -> int:
    """How many calls make a turn of about `at_least` seconds, judged by the quicker of two."""
    once = min(timer(call), timer(call))
    return max(1, min(1000, round(at_least / max(once, 1e-9))))


def run_rounds(
    candidates: Sequence[Candidate],
    rounds: int,
    timer: Timer,
    *,
    warm: int = 1,
    say: Say = lambda text: None,
    until: Callable[[], bool] = lambda: False,
) -> Timings:
    """Times the candidates, with the allocator as a training run sets it.

    Args:
        candidates: with names of their own.
        rounds: how many are kept.
        timer: what measures a turn.
        warm: rounds before that, which are not kept. Compiling belongs there.
        say: progress.
        until: asked before each round; ends it early, as if fewer rounds had been asked for.

    Returns:
        What was measured; KeyboardInterrupt ends it with the rounds that were finished.
    """
    keep_freed_memory()
    kept: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    begin = time.monotonic()
    collecting = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()  # what is there now stays; a collection between rounds is then quick
    try:
        for number in range(-warm, rounds):
            if number > 0 and until():
                break
            gc.collect()
            taken = {}
            for index in order(len(candidates), number):
                candidate = candidates[index]
                taken[candidate.name] = _turn(candidate, timer)
            if number >= 0:
                for name, value in taken.items():
                    kept[name].append(value)
                left = (time.monotonic() - begin) / (number + warm + 1) * (rounds - number - 1)
                say(f"round {number + 1}/{rounds}  {left:.0f} s left")
    except KeyboardInterrupt:
        return Timings(kept, interrupted=True)
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
    return Timings(kept)


def _turn(candidate: Candidate, timer: Timer) -> float:
    def work() -> None:
        for _ in range(candidate.calls):
            candidate.call()

    seconds = timer(work) / candidate.calls
    candidate.after()
    return seconds
