"""What gradients look like beside their size, by block: effective rank, and how much they differ between batches."""

from __future__ import annotations

from typing import Any

from leadline.probes.gradients import GradientDiversity, gradient_effective_rank
from leadline.training.gradient_norms import whole
from leadline.training.gradient_share import GradientShare


class Diversity:
    """The mean cosine between the gradients of a step's parts, for each block. Keeps one copy of the gradients.

    Args:
        share: knows which parameters are whose.
    """

    def __init__(self, share: GradientShare) -> None:
        self._parameters = share.by_block()
        self._blocks = [GradientDiversity() for _ in self._parameters]

    @property
    def parts(self) -> int:
        """How many parts were added."""
        return max((block.batches for block in self._blocks), default=0)

    def add(self) -> None:
        """The gradients as they are now, those of one part alone."""
        for parameters, block in zip(self._parameters, self._blocks, strict=True):
            block.add([None if p.grad is None else whole(p.grad) for p in parameters])

    def cosines(self) -> list[float | None]:
        """One for each block: 1 where all parts agree, 0 where they are orthogonal; None below two parts."""
        return [block.cosine() for block in self._blocks]


def effective_ranks(share: GradientShare) -> list[float | None]:
    """The effective rank of each block's gradient matrices as they are now, weighted by their entries.

    Costs the singular values of every matrix in the blocks. None for a block without a gradient, or with one of zeros.
    """
    return [
        gradient_effective_rank(None if p.grad is None else whole(p.grad) for p in parameters)
        for parameters in share.by_block()
    ]


def detail_of(step: int, share: GradientShare, diversity: Diversity) -> dict[str, Any]:
    """What `gradient.json` keeps of a step beside the norms."""
    return {
        "step": step,
        "effective_rank": effective_ranks(share),
        "cosine": diversity.cosines(),
        "parts": diversity.parts,
    }
