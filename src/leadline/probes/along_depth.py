"""Measurements along depth on held-out batches: what each block is worth, and how much each one turns its input.

All of them run in evaluation mode without gradients, and keep the same memory for any number of batches.
A batch is anything with `tokens` and `targets`, both (B, T) int64.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from leadline.connections.base import Readout, Site, State
from leadline.errors import LeadlineError, UsageError
from leadline.probes.ablation import LossRise, sequence_losses
from leadline.probes.passes import angles, chunks, cosines, mean_bits
from leadline.probes.record import Rows, record
from leadline.probes.similarity import MOST_TOKENS
from leadline.probes.streams import rows_of, shown_rows
from leadline.probes.watch import TokenBatch, Watcher, block_starts, counted, measuring, run, sites_of, watch


def removal(
    model: nn.Module, batches: Iterable[TokenBatch], *, bytes_per_token: float = 1.0, sites_per_block: int = 2
) -> list[float]:
    """What the loss rises by when a block is left out: ΔM_i of arXiv 2606.26538, in bits per byte.

    Leaving out is the connection's own notion (`Site.skip`), for all sublayers of the block.

    Args:
        model: called as `model(tokens, skip=sublayer_numbers)`; returns logits (B, T, V).
        bytes_per_token: of the batches' text, 1 for the byte tokenizer.

    Returns:
        One number per block; negative where the model is better without it.

    Raises:
        UsageError: the model's `forward` takes no `skip`.
        LeadlineError: there are no tokens.
    """
    _check_skip(model)
    sites = len(sites_of(model))
    blocks = [tuple(range(*ends)) for ends in itertools.pairwise([*block_starts(model, sites_per_block), sites])]
    rise = LossRise(len(blocks), resamples=0)
    with measuring(model) as device:
        for batch in batches:
            if not bool(counted(batch.targets).any()):
                continue
            tokens, targets = batch.tokens.to(device), batch.targets.to(device)
            logits = (model(tokens, skip=skip) if skip else model(tokens) for skip in ((), *blocks))
            rise.add([sequence_losses(found, targets) for found in logits], counted(targets))
    return [mean_bits(nats, bytes_per_token) for nats in rise.rises()]


def _check_skip(model: nn.Module) -> None:
    taken = inspect.signature(model.forward).parameters
    if "skip" not in taken and not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        raise UsageError(
            f"{type(model).__name__}.forward takes no skip; to be measured without a block it has to take skip=(4, 5), "
            "the numbers of the sublayers to leave out, and call `site.skip` for those"
        )


def angular_distance(model: nn.Module, batches: Iterable[TokenBatch], *, sites_per_block: int = 2) -> list[list[float]]:
    """arccos(cos)/π between the inputs of all blocks, and the readout: 0 for one direction, ½ for orthogonal ones.

    Row and column i < L is what block i reads at its first site; L is the readout. Averaged over tokens. After
    arXiv 2403.17887. A zero vector counts as orthogonal to any other.

    Returns:
        (L+1) × (L+1), symmetric, zero on the diagonal.
    """
    watcher = _Angles(block_starts(model, sites_per_block))
    hidden: Any = getattr(model, "hidden", model)
    with measuring(model) as device, watch(model, watcher):
        for batch in batches:
            hidden(batch.tokens.to(device))
            watcher.end_batch()
    if watcher.total is None:
        raise LeadlineError("there are no tokens to measure on")
    rows: list[list[float]] = (watcher.total / watcher.tokens).tolist()
    return rows


class _Angles(Watcher):
    def __init__(self, firsts: Iterable[int]) -> None:
        self.firsts = set(firsts)
        self.vectors: list[Tensor] = []
        self.total: Tensor | None = None
        self.tokens = 0

    def on_read(self, index: int, site: Site, state: State, read: Tensor) -> None:
        if index in self.firsts:
            self.vectors.append(read)

    def on_readout(self, readout: Readout, state: State, output: Tensor) -> None:
        self.vectors.append(output)

    def end_batch(self) -> None:
        # A few tokens at a time: the memory is that of the vectors, never of all pairs times tokens.
        for x_SnD in chunks(self.vectors, MOST_TOKENS):
            angle = angles(cosines(x_SnD)).sum(dim=0)
            angle = (angle + angle.T) / 2
            self.total = angle if self.total is None else self.total + angle
            self.tokens += x_SnD.shape[1]
        self.vectors = []


def depth_weights(model: nn.Module, batches: Iterable[TokenBatch]) -> Rows | None:
    """The weights of every read over its sources, for AttnRes: one row per sublayer and the readout's, ragged.

    None where the connection shows no weights.
    """
    return rows_of(_connection(model, batches), "weights")


def gates(model: nn.Module, batches: Iterable[TokenBatch]) -> Rows | None:
    """The write gates β of every sublayer per stream, for MGR; an empty row where a sublayer has no gate.

    For hyper-connections these are the weights `post` of a write, which aren't bound to lie between 0 and 1;
    `measure` leaves them out.
    """
    return rows_of(_connection(model, batches), "gates", last=False)


def stream_diversity(model: nn.Module, batches: Iterable[TokenBatch]) -> Rows | None:
    """1 − the mean cosine between pairs of streams before each sublayer; None for a connection of one stream."""
    return rows_of(_connection(model, batches), "diversity", last=False, empty=0.0)


def mixing(model: nn.Module, batches: Iterable[TokenBatch]) -> Rows | None:
    """The mean mixing matrix of every sublayer, streams × streams, for hyper-connections."""
    return rows_of(_connection(model, batches), "mixing", last=False)


def measure(
    model: nn.Module,
    batches: Sequence[TokenBatch],
    *,
    bytes_per_token: float = 1.0,
    removal_batches: int | None = None,
) -> dict[str, Any]:
    """Every measurement of this file on the same batches, as data that JSON can hold.

    Args:
        batches: read up to three times; a list.
        removal_batches: how many of the batches, evenly spaced, removal uses (it runs the model once per block); all
            where there are no more, and unless given.
    """
    with measuring(model) as device, record(model, inspect=True) as depth:
        tokens = run(model, batches, device)
    shown = depth.connection
    return {
        "tokens": tokens,
        "read_rms": depth.read_rms,
        "output_rms": depth.output_rms,
        "block_output_rms": depth.block_output_rms,
        "removal": removal(model, _evenly(batches, removal_batches), bytes_per_token=bytes_per_token),
        "angular_distance": angular_distance(model, batches),
        **shown_rows(shown),
    }


def _evenly(batches: Sequence[TokenBatch], count: int | None) -> Sequence[TokenBatch]:
    """So many of the batches, spread over all of them: they are in the order of the text."""
    total = len(batches)
    if count is None or count >= total:
        return batches
    return [batches[(2 * i + 1) * total // (2 * count)] for i in range(count)]


def _connection(model: nn.Module, batches: Iterable[TokenBatch]) -> dict[str, Rows]:
    with measuring(model) as device, record(model, inspect=True) as depth:
        run(model, batches, device)
    return depth.connection
