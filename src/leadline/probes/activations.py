"""How large activations are along depth, and how heavy their tails: blocks' outputs and sublayers' outputs.

Of each tensor (B, T, D), over all batches:

    rms            the mean over tokens of the root mean square over the width, as in `record`
    max            the largest |x|
    median         of |x| over all entries, from a histogram of 128 bins an octave: within 1/256 of the true value
    kurtosis       excess kurtosis of all entries, E (x − μ)⁴ / (E (x − μ)²)² − 3: 0 for a normal distribution
    massive_ratio  max / median, after arXiv 2402.17762 (massive activations)

and of each block ‖before‖ / ‖after − before‖, the residual-to-update ratio: the harmonic mean over tokens, so that a
token that the block leaves alone adds nothing rather than infinity. What is summed and how are our choices.

"before" and "after" are what `StackWatcher.on_block` tells: reads, where the connection isn't additive. A readout that
sums n streams (hyper-connections) counts as their mean, as in `record`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from leadline.probes.paired import PairedMeans
from leadline.probes.passes import Measure, wide
from leadline.probes.watch import TokenBatch, readout_of
from leadline.stacks import Stack

NAMES = ("rms", "max", "median", "kurtosis", "massive_ratio")
_BINS = 1 << 15


class Sizes:
    """The sizes of one place in depth, summed over batches. Keeps about 256 KiB on the tensors' device."""

    def __init__(self) -> None:
        self.tokens = 0
        self.rms_total: Tensor | None = None
        self.largest: Tensor | None = None
        self.histogram: Tensor | None = None
        self.moments = Moments()

    @torch.no_grad()
    def add(self, x: Tensor) -> Tensor:
        """One batch, (..., D); returns the root mean square of every vector, (...)."""
        x = x.detach()
        accurate = x if x.dtype == torch.float64 else x.float()
        each = torch.linalg.vector_norm(accurate, dim=-1) / max(x.shape[-1], 1) ** 0.5
        if x.numel() == 0:
            return each
        rms = each.sum()
        size = accurate.abs().float()
        # The bin of an |x| is the exponent and the first 7 bits of the fraction of its float32.
        histogram = torch.bincount((size.view(torch.int32) >> 16).flatten(), minlength=_BINS)
        if self.rms_total is None or self.largest is None or self.histogram is None:
            self.rms_total, self.largest, self.histogram = rms, size.max(), histogram
        else:
            self.rms_total = self.rms_total + rms
            self.largest = torch.maximum(self.largest, size.max())
            self.histogram += histogram
        self.tokens += x.shape[:-1].numel()
        self.moments.add(x)
        return each

    def result(self) -> dict[str, float | None]:
        """The five numbers; None where nothing came by or a number isn't defined."""
        if self.rms_total is None or self.largest is None or self.histogram is None:
            return dict.fromkeys(NAMES)
        largest, median = float(self.largest), histogram_median(self.histogram)
        return {
            "rms": float(self.rms_total) / self.tokens,
            "max": largest,
            "median": median,
            "kurtosis": self.moments.excess_kurtosis(),
            "massive_ratio": largest / median if median > 0 else None,
        }


class Moments:
    """Count, mean and the central moments 2 to 4 in float64, merged batch by batch.

    Merging central moments keeps the digits that sums of powers would lose. Source: Pébay, Sandia report
    SAND2008-6212, equations 1.5 and following.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.m2 = self.m3 = self.m4 = 0.0

    def add(self, x: Tensor) -> None:
        """All entries of one batch."""
        values = wide(x)
        mean = values.mean()
        off = values - mean
        square = off.square()
        sums = torch.stack([mean, square.sum(), (square * off).sum(), square.square().sum()]).tolist()
        self._merge(values.numel(), *sums)

    def _merge(self, count: int, mean: float, m2: float, m3: float, m4: float) -> None:
        if self.count == 0:
            self.count, self.mean, self.m2, self.m3, self.m4 = count, mean, m2, m3, m4
            return
        a, b = self.count, count
        n, d = a + b, mean - self.mean
        self.m4 += (
            m4
            + d**4 * a * b * (a * a - a * b + b * b) / n**3
            + 6 * d**2 * (a * a * m2 + b * b * self.m2) / n**2
            + 4 * d * (a * m3 - b * self.m3) / n
        )
        self.m3 += m3 + d**3 * a * b * (a - b) / n**2 + 3 * d * (a * m2 - b * self.m2) / n
        self.m2 += m2 + d**2 * a * b / n
        self.mean += d * b / n
        self.count = n

    def excess_kurtosis(self) -> float | None:
        """Fisher's, without a correction for the sample's size; None for a constant."""
        variance = self.m2 / self.count if self.count else 0.0
        # A constant leaves rounding behind, whose kurtosis would mean nothing.
        if variance <= 1e-24 * self.mean**2 or variance == 0.0:
            return None
        return self.m4 / self.count / variance**2 - 3.0


class Activations(Measure):
    """`Sizes` of what block 0 reads, and of the output of every block and every sublayer."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.input = Sizes()
        self.blocks = [Sizes() for _ in range(stack.blocks)]
        self.sublayers = [{name: Sizes() for name in names} for names in stack.sublayers]
        self._relative_updates = torch.zeros(stack.blocks, dtype=torch.float64)
        self._counted = [0] * stack.blocks
        self._rms = PairedMeans(stack.blocks)
        self._rms_of_batch: dict[int, Tensor] = {}
        # A readout that sums n streams is worth n of them; its size is compared with reads of one.
        readout = readout_of(stack.model)
        self._readout_sum = 1.0 if readout is None else max(1.0, readout.scale)

    def on_block(self, block: int, before: Tensor, after: Tensor) -> None:
        self.width = after.shape[-1]
        if block == self.stack.blocks - 1:
            after = after / self._readout_sum
        if block == 0:
            self.input.add(before)
        self._rms_of_batch[block] = self.blocks[block].add(after)
        before, after = wide(before), wide(after)
        size = torch.linalg.vector_norm(before, dim=-1)
        relative = (torch.linalg.vector_norm(after - before, dim=-1) / size)[size > 0]
        self._relative_updates[block] += relative.sum().cpu()
        self._counted[block] += relative.numel()

    def end_batch(self, batch: TokenBatch, logits: Tensor) -> None:
        super().end_batch(batch, logits)
        found, self._rms_of_batch = self._rms_of_batch, {}
        if len(found) == self.stack.blocks:
            sums = torch.stack([found[block].double().sum(dim=1).cpu() for block in range(self.stack.blocks)], dim=1)
            self._rms.add(sums.numpy(), np.full(len(sums), float(batch.tokens.shape[1])))

    def growth(self) -> dict[str, float | None] | None:
        """The last block's `rms` over block 1's, with its 95 % interval over sequences.

        From block 1 because block 0's jump is the small embedding's. None with fewer than three blocks.
        """
        if self.stack.blocks < 3:
            return None
        rows = np.eye(self.stack.blocks)
        return self._rms.ratio(rows[-1], rows[1]).plain()

    def on_sublayer(self, block: int, sublayer: str, output: Tensor) -> None:
        self.sublayers[block][sublayer].add(output)

    def residual_to_update(self) -> list[float | None]:
        """One ratio per block; None where it changes nothing, or was left out. Tokens read as zeros aren't counted."""
        return [
            count / float(total) if total > 0 else None
            for count, total in zip(self._counted, self._relative_updates, strict=True)
        ]

    def result(self) -> dict[str, Any]:
        """`tokens`, `input`, `blocks`, `sublayers`, `residual_to_update`; see `measure_stack`."""
        blocks = [sizes.result() for sizes in self.blocks]
        sublayers = [[sizes.result() for sizes in names.values()] for names in self.sublayers]
        return {
            "tokens": self.tokens,
            "input": self.input.result(),
            "blocks": {name: [sizes[name] for sizes in blocks] for name in NAMES},
            "sublayers": {name: [[sizes[name] for sizes in row] for row in sublayers] for name in NAMES},
            "residual_to_update": self.residual_to_update(),
            "growth": self.growth(),
        }


def histogram_median(histogram: Tensor) -> float:
    """The median from the counts of `Sizes`: the middle of its bin, or of both bins for an even count."""
    cumulated = histogram.cumsum(0)
    count = int(cumulated[-1])
    ranks = torch.tensor([(count - 1) // 2 + 1, count // 2 + 1], device=histogram.device)
    first = torch.searchsorted(cumulated, ranks).to(torch.int32) << 16
    low, middle = first.view(torch.float32), (first + (1 << 15)).view(torch.float32).double()
    # Bin 0 holds zero and what is too small for float32.
    return float(torch.where(low == 0, low.double(), middle).mean())
