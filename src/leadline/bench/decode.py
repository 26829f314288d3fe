"""`leadline bench decode`: the latency of one token of cached generation, as a multiple of PreNorm's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from leadline.bench import targets
from leadline.bench.models import BASELINE, DecoderOptions, Subject, subjects_for
from leadline.bench.results import Result, Row
from leadline.bench.rounds import Candidate, Say, what_is_timed
from leadline.bench.running import Run, time_verdict
from leadline.bench.shapes import VOCABULARY, BenchShape
from leadline.errors import UsageError
from leadline.models import KVCache, stream_tokens
from leadline.ops import use_backend

DESIGNS = ("attnres", "attnres-block", "mgr", "hc", "mhc-lite", "mhc", "bhyt", "peri-ln")
SHAPE = BenchShape(blocks=12, dim=512, heads=8, context=64, batch=1)
"""12 blocks, D=512; the context is the prompt's length."""
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 0.1}
"""How far cached logits may be from those of one pass over the text, relative to their length."""
CHECKED = 4
"""Tokens after the prompt whose logits are checked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeOptions(DecoderOptions):
    """Of `bench decode`.

    Attributes:
        group: tokens that a design generates in its turn.
    """

    designs: tuple[str, ...] = DESIGNS
    shape: BenchShape = SHAPE
    rounds: int = 25
    warm: int = 2
    group: int = 10

    def __post_init__(self) -> None:
        if self.group < 1:
            raise UsageError(f"--group {self.group} is too small; 1 or more work")

    @property
    def tokens(self) -> int:
        """Tokens that every design generates, warm-up included."""
        return self.group * (self.rounds + self.warm)

    @property
    def as_targeted(self) -> bool:
        """Whether the targets are stated for this shape."""
        return self.shape == SHAPE and super().as_targeted

    def plain(self) -> dict[str, Any]:
        """As the JSON file keeps them."""
        return {**super().plain(), "tokens": self.tokens}


def bench_decode(
    options: DecodeOptions,
    machine: Mapping[str, Any],
    say: Say = lambda text: None,
    until: Callable[[], bool] = lambda: False,
) -> Result:
    """Checks and times cached generation of every design.

    Raises:
        UsageError: a design that doesn't fit the shape, or a backend that can't run here.
    """
    prompt_length = options.shape.context
    roomy = dataclasses.replace(options.shape, context=prompt_length + options.tokens + CHECKED)
    subjects, notes = subjects_for(options, roomy, training=False)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(VOCABULARY, (options.shape.batch, prompt_length), generator=generator).to(options.device)
    run = Run(options, notes, say, until)
    with run.keeping():
        for subject in subjects:
            say(f"{subject.name}: check")
            run.rows[subject.name] = subject.row(check(subject, prompt, TOLERANCE[options.dtype]))
        if not options.check_only:
            sound = [subject for subject in subjects if not run.rows[subject.name].failed]
            run.time(_candidate(subject, prompt, options) for subject in sound)
    return run.result(
        {name: _judged(row, options) for name, row in run.timed(BASELINE).items()},
        str(SHAPE),
        bench="decode",
        title=f"one token of cached generation: {options.shape.blocks} blocks, D={options.shape.dim}, batch "
        f"{options.shape.batch}, after a prompt of {prompt_length}, {options.where}",
        method=f"{what_is_timed(options.device, options.clock)} of greedy cached generation, the choice of the token "
        f"included; {options.group} tokens a turn, interleaved rounds, medians with distribution-free intervals, "
        "ratios within a round; nothing is flushed.",
        baseline=BASELINE,
        machine=machine,
    )


@torch.no_grad()
def check(subject: Subject, prompt: Tensor, tolerance: float) -> str:
    """What is wrong with cached logits against one pass of the reference over the text; empty where nothing is."""
    model = subject.model
    following = torch.arange(CHECKED, device=prompt.device).expand(prompt.shape[0], -1)
    text = torch.cat((prompt, following), dim=1)
    with use_backend("reference"):
        truth = model(text)[:, -CHECKED - 1 :]
    cache = KVCache()
    with subject.running():
        found = [model(prompt, cache=cache)[:, -1:]]
        found += [model(token, cache=cache) for token in following.split(1, dim=1)]
    error = float((torch.cat(found, dim=1) - truth).double().norm() / truth.double().norm())
    return "" if error <= tolerance else f"cached logits are off by {error:.1e}, more than {tolerance:.0e}"


def _candidate(subject: Subject, prompt: Tensor, options: DecodeOptions) -> Candidate:
    """A turn takes `group` tokens from a stream that has read the prompt already."""
    stream: Iterator[Tensor] = stream_tokens(subject.model, prompt, options.tokens + 1, temperature=0)
    with subject.running():
        next(stream)

    def token() -> None:
        with subject.running():
            next(stream)

    return Candidate(name=subject.name, call=token, calls=options.group)


def _judged(row: Row, options: DecodeOptions) -> Row:
    target = targets.DECODE.get(row.label) if options.as_targeted else None
    if target is None or row.ratio is None:
        return row
    return dataclasses.replace(row, verdicts=(time_verdict(row.ratio, target),))
