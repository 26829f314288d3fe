"""How long a study will take, said before it starts: a training step is timed here and scaled by FLOPs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from leadline.experiments.jobs import Job
from leadline.pruning.speed import torch_threads
from leadline.report.words import count, duration
from leadline.training import RunConfig

STEP_TOKENS = 1024
MOST_FLOPS = 2e11
"""A step that costs more is not timed beforehand: that would take longer than it is worth."""
START = 8.0
"""Seconds that a run takes to start and to write."""
BESIDE = 1.25
"""Two processes on two cores are slower than one alone, by experience."""


class Step(NamedTuple):
    """A piece of training to be timed: what runs it, and its FLOPs."""

    run: Callable[[], None]
    flops: float


def step_of(config: RunConfig) -> Step | None:
    """Forward and backward of a decoder; None for large models and for devices other than the CPU."""
    import torch

    from leadline.designs import count_flops
    from leadline.models import Decoder
    from leadline.training.evaluation import loss_of
    from leadline.training.resolve import decide, usable_device

    run = decide(config)
    sequences = max(1, min(run.batch_size, STEP_TOKENS // run.context))
    flops = count_flops(run.model).training_total * sequences * run.context
    if usable_device(config.runtime.device).type != "cpu" or flops > MOST_FLOPS:
        return None
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(run.data.vocab_size, (sequences, run.context), generator=generator)
    with torch.random.fork_rng(devices=[]):
        model = Decoder(run.model)
    return Step(run=lambda: loss_of(model(tokens), tokens).backward(), flops=float(flops))


def estimate_words(queue: Sequence[Job], slots: int, threads: int, step: Step | None) -> str:
    """What is still to be done, in a sentence.

    Args:
        queue: its costs are in FLOPs.
        slots: jobs at a time.
        threads: of each.
        step: a piece of training to time; None: the time isn't told.
    """
    waiting = [job for job in queue if not job.done]
    flops = sum(job.cost for job in waiting)
    units = dict.fromkeys(job.unit for job in waiting)
    read = [f"{count(sum(job.tokens for job in waiting if job.unit == unit))} {unit}" for unit in units]
    amount = ", ".join([f"{len(waiting)} of {len(queue)} runs to do", *read])
    what = f"{amount} and {count(flops)}FLOPs with measurements"
    if step is None:
        return f"{what}; the time is told once runs are on their way"
    rate = flops_per_second(step, threads)
    slots = max(1, min(slots, len(waiting)))
    seconds = (flops / rate * (BESIDE if slots > 1 else 1.0) + START * len(waiting)) / slots
    # The longest run can't be shared out.
    longest = max((job.cost for job in waiting), default=0.0) / rate
    return f"{what}: about {duration(max(seconds, longest))} on a machine that does nothing else"


def flops_per_second(step: Step, threads: int) -> float:
    """The training speed of one process: the best of three times."""
    with torch_threads(threads):
        return step.flops / min(_time(step) for _ in range(3))


def _time(step: Step) -> float:
    began = time.perf_counter()
    step.run()
    return time.perf_counter() - began
