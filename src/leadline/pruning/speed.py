"""Speed before and after a cut: prefill and generation, in tokens per second.

Both models take turns in every round, in an order that changes from round to round, after rounds that only warm up.
The clock starts on an idle device and stops when it is idle again. A ratio is formed within a round, so what disturbs
the machine for a while disturbs both.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from leadline.errors import UsageError
from leadline.hub.agreement import generate_greedily
from leadline.models import Decoder, generate
from leadline.stacks import Stack

TURN_SECONDS = 0.05
"""A turn shorter than this is repeated within the round until it is about as long."""
MOST_CALLS = 200


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How speed is measured.

    Attributes:
        batch_sizes: one measurement each.
        prompt: tokens of prefill.
        tokens: generated ones, after a prompt of one token.
        rounds: that count.
        warm: rounds before them.

    Raises:
        UsageError: a number out of range.
    """

    batch_sizes: tuple[int, ...] = (1, 4, 16)
    prompt: int = 128
    tokens: int = 32
    rounds: int = 5
    warm: int = 2

    def __post_init__(self) -> None:
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise UsageError("--speed-batches has to name numbers of 1 or more, such as 1,4,16")
        if self.rounds < 1 or self.prompt < 1 or self.tokens < 1 or self.warm < 1:
            raise UsageError("rounds, warm-up rounds, prompt and generated tokens have to be 1 or more")


def compare_speed(
    before: Stack, after: Stack, timing: Timing, progress: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Speeds of two models, one entry per batch size and kind of work.

    Returns:
        `work` ("prefill" or "generation"), `batch_size`, `before` and `after` in tokens per second (medians over
        rounds), `ratio` (the median of after / before by round) with `ratio_low` and `ratio_high` (its smallest and
        largest), and the `ratios` themselves.
    """
    found = []
    for batch_size in timing.batch_sizes:
        for work, tokens in (("prefill", timing.prompt), ("generation", timing.tokens)):
            calls = [_call(stack, work, batch_size, timing) for stack in (before, after)]
            with torch.no_grad():
                seconds = interleaved(calls, timing.rounds, timing.warm, lambda: synchronise(before.device))
            entry = _entry(work, batch_size, batch_size * tokens, *seconds)
            progress(f"{work}, batch {batch_size}: {entry['ratio']:.2f} times as fast")
            found.append(entry)
    return found


def interleaved(
    calls: Sequence[Callable[[], object]],
    rounds: int,
    warm: int,
    wait: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds of one call of each, by round.

    Args:
        wait: returns when the device is idle.
    """
    repeats = [1] * len(calls)
    kept: list[list[float]] = [[] for _ in calls]
    collecting = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()  # what is there now stays, so that a collection between rounds is quick
    try:
        for number in range(-warm, rounds):
            gc.collect()
            order = list(range(len(calls)))
            for index in order if number % 2 == 0 else order[::-1]:
                wait()
                begin = clock()
                for _ in range(repeats[index]):
                    calls[index]()
                wait()
                seconds = (clock() - begin) / repeats[index]
                if number >= 0:
                    kept[index].append(seconds)
                elif number == -1:
                    repeats[index] = max(1, min(MOST_CALLS, round(TURN_SECONDS / max(seconds, 1e-9))))
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
    return kept


def synchronise(device: torch.device) -> None:
    """Waits until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _entry(work: str, batch_size: int, tokens: int, before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    ratios = [b / max(a, 1e-12) for b, a in zip(before, after, strict=True)]
    return {
        "work": work,
        "batch_size": batch_size,
        "before": tokens / statistics.median(before),
        "after": tokens / statistics.median(after),
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "ratios": ratios,
    }


def _call(stack: Stack, work: str, batch_size: int, timing: Timing) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    length = timing.prompt if work == "prefill" else 1
    tokens = torch.randint(stack.vocab_size, (batch_size, length), generator=generator).to(stack.device)
    if work == "prefill":
        return lambda: stack.logits(tokens)
    model = stack.model  # the most likely tokens, with a cache, never ended early
    if isinstance(model, Decoder):
        return lambda: generate(model, tokens, timing.tokens, temperature=0.0)
    return lambda: generate_greedily(model, tokens, timing.tokens)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """PyTorch works with so many threads until the context ends."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
