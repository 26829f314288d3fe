"""What a connection shows of itself over depth, and how far each of its streams turns on its way.

For every stream of Multi-Gate Residuals or hyper-connections the angular distance arccos(cos)/π between what it holds
before block i and before block j, and at the readout: whether streams have boundaries of their own, as the pictures in
arXiv 2605.23259 show. Averaged over tokens; the measure per stream is our reading of those pictures.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from leadline.errors import LeadlineError
from leadline.probes.passes import angles, chunks, cosines
from leadline.probes.record import DepthRecord, Rows
from leadline.probes.watch import TokenBatch, measuring, watch
from leadline.stacks import Stack

MOST_TOKENS = 256


class StreamRecord(DepthRecord):
    """A depth record that also compares each stream with itself, at the first site of every block and the readout.

    Args:
        firsts: the number of each block's first site.
    """

    def __init__(self, sublayers: int, firsts: list[int]) -> None:
        super().__init__(sublayers, inspect=True, firsts=firsts)
        self._rows = {site: row for row, site in enumerate([*firsts, sublayers])}
        self._held: dict[int, Tensor] = {}
        self._totals: list[Tensor] = []
        self._counts: list[Tensor] = []

    def _show(self, index: int, shown: dict[str, Tensor]) -> None:
        if "streams" in shown and index in self._rows:
            self._held[self._rows[index]] = shown["streams"].detach()
        super()._show(index, shown)

    def end_batch(self) -> None:
        """The forward pass of a batch is over."""
        held, self._held = self._held, {}
        size = len(self._rows)
        for stream in range(max((len(streams) for streams in held.values()), default=0)):
            rows = [row for row in sorted(held) if len(held[row]) > stream]
            if stream == len(self._totals):
                self._totals.append(torch.zeros(size, size, dtype=torch.float64))
                self._counts.append(torch.zeros(size, size, dtype=torch.float64))
            at = torch.tensor(rows)
            for x_SnD in chunks([held[row][stream] for row in rows], MOST_TOKENS):
                angle = angles(cosines(x_SnD)).sum(dim=0).cpu()
                self._totals[stream][at[:, None], at] += (angle + angle.T) / 2
                self._counts[stream][at[:, None], at] += x_SnD.shape[1]

    def stream_angles(self) -> list[list[list[float | None]]] | None:
        """For each stream (L+1, L+1), symmetric, zero on the diagonal; None where it isn't there yet.

        None as a whole for a connection without streams, or with one alone.
        """
        if len(self._totals) < 2:
            return None
        return [
            [
                [value / seen if seen else None for value, seen in zip(values, counts, strict=True)]
                for values, counts in zip(total.tolist(), count.tolist(), strict=True)
            ]
            for total, count in zip(self._totals, self._counts, strict=True)
        ]


def connection_shown(
    stack: Stack, batches: Iterable[TokenBatch], *, on_batch: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Depth weights, gates, mixing, stream diversity and each stream's angles; see `measure_stack`.

    Raises:
        LeadlineError: the model has no connection sites, or there are no tokens.
    """
    widths = [len(names) for names in stack.sublayers]
    firsts = list(itertools.accumulate(widths, initial=0))[:-1]
    depth = StreamRecord(sum(widths), [first for first, width in zip(firsts, widths, strict=True) if width])
    tokens = 0
    with measuring(stack.model) as device, watch(stack.model, depth):
        hidden: Callable[[Tensor], Any] = getattr(stack.model, "hidden", stack.model)
        for batch in batches:
            if batch.tokens.numel() == 0:
                continue
            hidden(batch.tokens.to(device))
            depth.end_batch()
            tokens += batch.tokens.numel()
            if on_batch is not None:
                on_batch()
    if tokens == 0:
        raise LeadlineError("there are no tokens to measure on")
    shown = depth.connection
    rows = shown_rows(shown)
    if "mixing" not in shown:
        rows["depth_weights"] = rows_of(shown, "weights")
    return {"tokens": tokens, **rows, "stream_angular_distance": depth.stream_angles()}


def shown_rows(shown: dict[str, Rows]) -> dict[str, Rows | None]:
    """What a `DepthRecord` saw of its connection, by the names that results use; None where there is nothing.

    Weights are left out where gates or mixing tell more, and gates where a mixing goes with them: those of
    hyper-connections aren't bound to lie between 0 and 1.
    """
    return {
        "depth_weights": None if {"gates", "mixing"} & shown.keys() else rows_of(shown, "weights"),
        "gates": None if "mixing" in shown else rows_of(shown, "gates", last=False),
        "stream_diversity": rows_of(shown, "diversity", last=False, empty=0.0),
        "mixing": rows_of(shown, "mixing", last=False),
    }


def rows_of(shown: dict[str, Rows], name: str, *, last: bool = True, empty: Any = None) -> Rows | None:
    """One row per site, and the readout's if `last`; `empty` or [] where a site shows nothing."""
    rows = shown.get(name)
    if rows is None or all(row is None for row in rows):
        return None
    missing = [] if empty is None else empty
    return [missing if row is None else row for row in (rows if last else rows[:-1])]
