"""Attention Residuals (AttnRes, arXiv 2603.15031): a softmax over earlier sublayers' outputs, one query a reader.

    a_i = softmax_i(w_l · (rms(v_i) ⊙ g_l)),   h = Σ_i a_i v_i,   v_0 = embedding,  v_i = F_i(h_i)

*Full* reads every output apart. *Block* sums the S outputs of a block into one source: a bank of finished blocks,
and the partial sum of the current block. A read that belongs to another block than the partial sum commits it first.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leadline.config import check_choices, check_numbers, kind
from leadline.connections.base import Connection, Read, Readout, Site
from leadline.errors import UsageError
from leadline.ops.depth_attention import read_ahead, read_on, read_sources, source_root
from leadline.ops.next_norm import NextNorm, normed
from leadline.ops.precision import few_numbers, no_autocast, wide

LOOK_AHEAD = 8
"""Readers of Full that a model prefetches at a time."""


class ReadAhead(NamedTuple):
    """A reader's first phase.

    Attributes:
        query: the reader's own parameter, by which it knows its entry.
        direction: query ⊙ key gain, (D,).
        mix, lse: see `leadline.ops.depth_attention.read_ahead`.
        covered: an empty tensor of shape (0, sources covered), the first ones.
    """

    query: Tensor
    direction: Tensor
    mix: Tensor
    lse: Tensor
    covered: Tensor


class AttentionState(NamedTuple):
    """What travels.

    Attributes:
        bank: finished sources, each (..., D); the embedding first.
        roots: for each the inverse RMS, (...), float32 or wider; empty where no read needs it,
            as for a few tokens without gradients.
        partial: the sum of the outputs of the current block, (..., D), and its root if roots are needed; empty before
            the block's first output.
        place: an empty tensor of shape (0, block): the number of the current block, as a tensor that needs no reading.
        ahead: what `prefetch` has computed for readers to come.
    """

    bank: tuple[Tensor, ...]
    roots: tuple[Tensor, ...]
    partial: tuple[Tensor, ...]
    place: Tensor
    ahead: tuple[ReadAhead, ...] = ()

    @property
    def block(self) -> int:
        """The number of the block that the partial sum belongs to."""
        return self.place.shape[1]

    def commit(self, block: int) -> AttentionState:
        """The state as block `block` sees it: a partial sum of another block joins the bank and leaves nothing."""
        if block == self.block:
            return self
        return AttentionState(self.sources, self.source_roots, (), self.place.new_empty((0, block)), self.ahead)

    def handed_on(self, first: tuple[Tensor, ...], last: tuple[Tensor, ...]) -> AttentionState:
        """The state with its first and last sources in the form in which a read hands them on."""
        sources = (*first, *self.sources[len(first) : len(self.sources) - len(last)], *last)
        partial = (*sources[len(self.bank) :], *self.partial[1:])
        return self._replace(bank=sources[: len(self.bank)], partial=partial)

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """The bank and the partial sum, if there is one."""
        return (*self.bank, *self.partial[:1])

    @property
    def source_roots(self) -> tuple[Tensor, ...]:
        """Their roots."""
        return (*self.roots, *self.partial[1:])


class _Reader(Read[AttentionState]):
    """A read over depth, for a site and for the readout alike.

    Parameters: `query` (D) and `key_gain` (D, with a key norm). With static weights `query` holds one score for
    each source that it sees, in the order in which it sees them.
    """

    query: nn.Parameter | None
    key_gain: nn.Parameter | None
    takes_norm = True

    def __init__(self, config: AttentionResiduals, dim: int, sources: int, block: int, **factory: Any) -> None:
        super().__init__(config.read_scale(sources))
        self.config = config
        self.block = block
        size = config.seen(sources) if config.weights == "static" else dim
        reads = sources > 1
        self.add_parameters(
            factory, query=((size,), 0.0) if reads else None, key_gain=((dim,), 1.0) if reads and config.keyed else None
        )

    def _mix(self, state: AttentionState, norm: NextNorm | None = None) -> tuple[Tensor, AttentionState]:
        """The mix, normed where there is a norm, and the state with its sources as the read hands them on."""
        query, gain, config = self.query, self.key_gain, self.config
        if (
            not state.roots
            and query is not None
            and gain is not None
            and config.weights == "softmax"
            and not state.ahead
        ):
            mix, _ = read_sources(config.within_window(state.sources), query, gain, config.eps, norm=norm)
            return mix, state
        seen, roots = config.within_window(state.sources), config.within_window(state.source_roots)
        if self.query is None:
            if len(seen) > 1:
                raise UsageError(f"a site without a query met {len(seen)} sources; the first site must come first")
            return normed(seen[0], norm), state
        if self.config.weights == "softmax" and self.key_gain is not None:
            for entry in state.ahead:
                if entry.query is self.query:
                    mix, state = self._go_on(state, entry)
                    return normed(mix, norm), state
            known = roots if len(roots) == len(seen) else None
            mix, handed = read_sources(seen, self.query, self.key_gain, self.config.eps, roots=known, norm=norm)
            return mix, state if handed[0] is seen[0] else state.handed_on(handed[:1], handed[1:])
        if len(seen) == 1:
            return normed(seen[0], norm), state
        with no_autocast(seen[0]):
            return normed(self._weighted(seen, self._weights(seen, self.query)), norm), state

    def _go_on(self, state: AttentionState, entry: ReadAhead) -> tuple[Tensor, AttentionState]:
        """The second phase: the sources that were not there when the first one ran."""
        covered = entry.covered.shape[1]
        later, roots = state.sources[covered:], state.source_roots[covered:]
        mix, handed = read_on(entry.mix, entry.lse, later, entry.direction, self.config.eps, roots=roots)
        ahead = tuple(other for other in state.ahead if other is not entry)
        return mix, state.handed_on((), handed)._replace(ahead=ahead)

    def _weights(self, sources: tuple[Tensor, ...], query: Tensor) -> Tensor:
        """The weights of each source, (k, ...), in float32 or wider, by the plain formula."""
        dtype = wide(sources[0].dtype)
        if self.config.weights == "static":
            if len(sources) > len(query):
                raise UsageError(
                    f"static weights for {len(query)} sources met {len(sources)}; softmax takes any number"
                )
            scores = query.to(dtype)[: len(sources)].reshape(-1, *[1] * (sources[0].dim() - 1))
            return scores.softmax(dim=0).expand(-1, *sources[0].shape[:-1])
        direction = query.to(dtype)
        if self.key_gain is not None:
            direction = direction * self.key_gain.to(dtype)
        scores = torch.stack([torch.matmul(source.to(dtype), direction) for source in sources])
        if self.config.key_norm:
            means = torch.stack([source.to(dtype).square().mean(dim=-1) for source in sources])
            scores = scores * (means + self.config.eps).rsqrt()
        if self.config.weights == "sigmoid":
            return torch.sigmoid(scores)
        return scores.softmax(dim=0)

    def _weighted(self, sources: tuple[Tensor, ...], weights: Tensor) -> Tensor:
        total = sources[0].to(weights.dtype) * weights[0].unsqueeze(-1)
        for source, weight in zip(sources[1:], weights[1:].unbind(0), strict=True):
            total = torch.addcmul(total, source.to(weights.dtype), weight.unsqueeze(-1))
        return total.to(sources[0].dtype)

    @torch.no_grad()
    def _inspect(self, state: AttentionState) -> dict[str, Tensor]:
        sources = self.config.within_window(state.sources)
        if len(sources) == 1 or self.query is None:
            return {"weights": torch.ones_like(sources[0][..., :1]).float()}
        with no_autocast(sources[0]):
            return {"weights": self._weights(sources, self.query).movedim(0, -1).float()}


class AttentionSite(_Reader, Site[AttentionState]):
    """One sublayer's read, and the place that its output takes.

    Attributes:
        block: the number of the block that it belongs to, from 0.
    """

    def read(self, state: AttentionState) -> tuple[Tensor, AttentionState]:
        """The mix of the bank and of this block's partial sum; a partial sum of another block joins the bank first."""
        return self._mix(state.commit(self.block))

    def read_normed(self, state: AttentionState, norm: NextNorm) -> tuple[Tensor, AttentionState]:
        """As `read`, with the norm folded into it."""
        return self._mix(state.commit(self.block), norm)

    def write(self, state: AttentionState, output: Tensor) -> AttentionState:
        """The output joins the partial sum of this block."""
        bank, roots, partial, place, ahead = state.commit(self.block)
        output = output.to(bank[0].dtype)
        total = partial[0] + output if partial else output
        return AttentionState(bank, roots, (total, *_roots(self.config, total)), place, ahead)

    def inspect(self, state: AttentionState) -> dict[str, Tensor]:
        """`weights` of the sources, the embedding first."""
        return self._inspect(state.commit(self.block))


class AttentionReadout(_Reader, Readout[AttentionState]):
    """One more read, over the bank and the last partial sum."""

    def forward(self, state: AttentionState) -> Tensor:
        """x (..., D) in the state's dtype."""
        return self._mix(state)[0]

    def read_normed(self, state: AttentionState, norm: NextNorm) -> Tensor:
        """As `forward`, with the norm folded into it."""
        return self._mix(state, norm)[0]

    def inspect(self, state: AttentionState) -> dict[str, Tensor]:
        """`weights` of the sources, the embedding first."""
        return self._inspect(state)


@kind("attention-residuals")
@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionResiduals(Connection[AttentionState]):
    """Attention Residuals, Full or Block.

    Attributes:
        block_size: sublayers whose outputs are summed into one source; None (or 1) is Full.
        key_norm: score normalised sources.
        weights: how scores become weights: "softmax", "sigmoid", or "static" (learned numbers, no scores).
        window: read only so many recent sources beside the embedding; None reads all.
        eps: in the root mean square of a source.
    """

    block_size: int | None = None
    key_norm: bool = True
    weights: Literal["softmax", "sigmoid", "static"] = "softmax"
    window: int | None = None
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size is not None and self.block_size < 1:
            raise UsageError(f"block_size={self.block_size} must be at least 1 (Full), or None")
        check_choices(self)
        if self.window is not None and self.window < 1:
            raise UsageError(f"window={self.window} must be at least 1, or None for all sources")
        check_numbers(self, not_negative=("eps",))

    @property
    def keyed(self) -> bool:
        """Whether a read has a key gain: it scores sources, normalised."""
        return self.key_norm and self.weights != "static"

    @property
    def two_phase(self) -> bool:
        """Whether `prefetch` reads anything ahead: not for ablations."""
        return self.weights == "softmax" and self.key_norm and self.window is None

    def read_scale(self, sources: int) -> float:
        """What a read of `sources` sources is worth in residual streams at the start."""
        return 0.5 if self.weights == "sigmoid" and sources > 1 else 1.0 / self.seen(sources)

    def seen(self, sources: int) -> int:
        """How many of `sources` sources a read sees."""
        return sources if self.window is None else min(sources, self.window + 1)

    def within_window(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The first of the parts and the `window` last."""
        if self.window is None or len(parts) <= self.window + 1:
            return parts
        return (parts[0], *parts[-self.window :])

    def open(self, x: Tensor) -> AttentionState:
        """One source, the embedding x (..., D)."""
        x = self.state_tensor(x)
        return AttentionState((x,), _roots(self, x), (), x.new_empty((0, 0)))

    def prefetch(self, state: AttentionState, upcoming_sites: Sequence[Site]) -> AttentionState:
        """Phase 1 of the reads of `upcoming_sites`: the finished sources are read once for all of them.

        Their reads go on from there; a read of another site, and a skip, are what they were. Not for ablations.
        """
        readers = [site for site in upcoming_sites if isinstance(site, AttentionSite) and site.query is not None]
        if not readers or not self.two_phase:
            return state
        state = state.commit(readers[0].block)
        queries: list[Tensor] = [site.query for site in readers if site.query is not None]
        gains: list[Tensor] = [site.key_gain for site in readers if site.key_gain is not None]
        with no_autocast(state.bank[0]):
            dtype = wide(state.bank[0].dtype)
            directions = torch.stack(queries).to(dtype) * torch.stack(gains).to(dtype)
        found = read_ahead(state.bank, directions, self.eps, roots=state.roots)
        covered = state.place.new_empty((0, len(state.bank)))
        parts = zip(queries, directions.unbind(0), found.mixes, found.lse, strict=True)
        return state._replace(bank=found.bank, ahead=tuple(ReadAhead(*part, covered) for part in parts))

    def look_ahead(self, state: AttentionState, sites: Sequence[Site]) -> Sequence[Site]:
        """Of the sites to come, those that are worth a `prefetch` now: those of one block, or a few of Full."""
        first = sites[0] if sites else None
        if not isinstance(first, AttentionSite) or any(entry.query is first.query for entry in state.ahead):
            return ()
        if (self.block_size or 1) == 1:
            return sites[:LOOK_AHEAD]
        return list(
            itertools.takewhile(lambda site: isinstance(site, AttentionSite) and site.block == first.block, sites)
        )

    def pack(self, state: AttentionState) -> tuple[Tensor, ...]:
        """The bank, the partial sum if there is one, and an empty tensor of shape (0, 1 or 0, block) that says so.

        Integers travel in the shape of an empty tensor, so nothing waits for a device.
        """
        return (*state.sources, state.place.new_empty((0, min(len(state.partial), 1), state.block)))

    def unpack(self, tensors: Sequence[Tensor], site: Site | Readout) -> AttentionState:
        """The inverse of `pack`."""
        *sources, note = tensors
        _, partials, block = note.shape
        finished = len(sources) - partials
        bank, partial = tuple(sources[:finished]), tuple(sources[finished:])
        return AttentionState(
            bank, _roots(self, *bank), (*partial, *_roots(self, *partial)), note.new_empty((0, block))
        )

    def make_site(self, index: int, dim: int, sublayers: int, **factory: Any) -> AttentionSite:
        """Site `index`, which belongs to block `index // block_size`."""
        size = self.block_size or 1
        return AttentionSite(self, dim, _sources(index, size), index // size, **factory)

    def make_readout(self, dim: int, sublayers: int, **factory: Any) -> AttentionReadout:
        """The last read; it belongs to no block."""
        size = self.block_size or 1
        return AttentionReadout(self, dim, _sources(sublayers, size), -1, **factory)


def _roots(config: AttentionResiduals, *sources: Tensor) -> tuple[Tensor, ...]:
    """Of sources just written: worked out once, without a gradient of their own; empty where no read needs them."""
    if (sources and few_numbers(sources[0])) or not (config.keyed and config.weights == "softmax"):
        return ()
    with torch.no_grad():
        return tuple(source_root(source, config.eps) for source in sources)


def _sources(index: int, size: int) -> int:
    """Sources that a read before sublayer `index` sees: the embedding, finished blocks, and a partial sum."""
    return 1 + -(-index // size)
