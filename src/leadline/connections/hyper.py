"""Hyper-Connections (HC, arXiv 2409.19606): n residual streams, read, written and mixed by learned coefficients.

With `H_i` the streams and `Hn = rms(H)` per stream, at each site

    pre = pre0 + s_pre tanh(Hn w_pre)        h    = Σ_i pre_i H_i
    res = res0 + s_res tanh(Hn W_res)        H'_j = Σ_i res_ij H_i + post_j F(h)
    post = post0 + s_post tanh(Hn w_post)    readout: Σ_j H_j

It starts as PreNorm exactly, with `eps · n²` in the norm after the readout. N streams, T tokens, D width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leadline.config import check_numbers, kind
from leadline.connections.base import Connection, Readout, Site
from leadline.errors import UsageError
from leadline.ops.next_norm import NextNorm
from leadline.ops.precision import no_autocast
from leadline.ops.stream_mixing import StreamRead, hyper_read, write_streams


class StreamsState(NamedTuple):
    """What travels.

    Attributes:
        streams: the residual streams, (..., N, D).
        pending: after a read, what its write needs: the mixing (T, N, N) and post (T, N), float32 or wider; else empty.
    """

    streams: Tensor
    pending: tuple[Tensor, ...] = ()


class StreamsSite(Site[StreamsState]):
    """One sublayer's place among n streams. A subclass says how it reads."""

    takes_norm = True

    def __init__(self, streams: int, dim: int, home: int, eps: float) -> None:
        super().__init__(scale=1.0)
        self.streams = streams
        self.dim = dim
        self.home = home
        self.eps = eps

    def read_streams(self, streams_TND: Tensor, norm: NextNorm | None = None) -> StreamRead:
        """What this sublayer reads of these streams, normed if there is a norm, and the coefficients of its write."""
        raise TypeError(f"{type(self).__name__} does not define read_streams")

    def read(self, state: StreamsState) -> tuple[Tensor, StreamsState]:
        """`h = Σ_i pre_i H_i`. The write's coefficients depend on the same streams, so they are made here and kept."""
        return self._read(state)

    def read_normed(self, state: StreamsState, norm: NextNorm) -> tuple[Tensor, StreamsState]:
        """As `read`, with the norm folded into it."""
        return self._read(state, norm)

    def _read(self, state: StreamsState, norm: NextNorm | None = None) -> tuple[Tensor, StreamsState]:
        shape = state.streams.shape
        with no_autocast(state.streams):
            found = self.read_streams(state.streams.reshape(-1, self.streams, self.dim), norm)
        new = StreamsState(found.streams.view(shape), (found.mixing, found.post))
        return found.h.view(*shape[:-2], self.dim), new

    def write(self, state: StreamsState, output: Tensor) -> StreamsState:
        """`H'_i = Σ_j M_ij H_j + post_i F`.

        Raises:
            UsageError: the state is not one that `read` returned.
        """
        if not state.pending:
            raise UsageError("write needs the state that this site's read returned")
        mixing, post = state.pending
        streams_TND = state.streams.reshape(-1, self.streams, self.dim)
        new_TND = write_streams(streams_TND, output.reshape(-1, self.dim), mixing, post)
        return StreamsState(new_TND.view(state.streams.shape))

    def skip(self, state: StreamsState) -> StreamsState:
        """The streams as they are: neither written nor mixed."""
        return StreamsState(state.streams) if state.pending else state

    @torch.no_grad()
    def inspect(self, state: StreamsState) -> dict[str, Tensor]:
        """`weights` (pre), `gates` (post), `mixing` (from the last index to the one before it) and `streams`."""
        shape = state.streams.shape
        with no_autocast(state.streams):
            found = self.read_streams(state.streams.detach().reshape(-1, self.streams, self.dim))
        lead = shape[:-2]
        return {
            "weights": found.pre.reshape(*lead, self.streams).float(),
            "gates": found.post.reshape(*lead, self.streams).float(),
            "mixing": found.mixing.reshape(*lead, self.streams, self.streams).float(),
            "streams": state.streams.detach().movedim(-2, 0).float(),
        }


class StreamsReadout(Readout[StreamsState]):
    """The sum of the streams."""

    def forward(self, state: StreamsState) -> Tensor:
        """x (..., D) in the streams' dtype, summed in float32 or wider."""
        streams: Tensor = state.streams
        with no_autocast(streams):
            return streams.sum(-2)

    @torch.no_grad()
    def inspect(self, state: StreamsState) -> dict[str, Tensor]:
        """`weights`, all one, and `streams`."""
        streams = state.streams.detach()
        return {"weights": torch.ones_like(streams[..., 0]).float(), "streams": streams.movedim(-2, 0).float()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamsConnection(Connection[StreamsState]):
    """What connections of n equal streams have in common.

    Attributes:
        streams: n, at least 1.
        eps: in the root mean square that the coefficients are made from.
    """

    streams: int = 4
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, positive=("streams",), not_negative=("eps",))

    def open(self, x: Tensor) -> StreamsState:
        """Every stream starts as the embedding x (..., D)."""
        x = self.state_tensor(x)
        return StreamsState(x.unsqueeze(-2).expand(*x.shape[:-1], self.streams, x.shape[-1]).contiguous())

    def pack(self, state: StreamsState) -> tuple[Tensor, ...]:
        """The streams (..., N, D); and the coefficients of a write, if the hop lies between a read and its write."""
        return (state.streams, *state.pending)

    def unpack(self, tensors: Sequence[Tensor], site: Site | Readout) -> StreamsState:
        """The inverse of `pack`."""
        streams, *pending = tensors
        return StreamsState(streams, tuple(pending))

    def make_readout(self, dim: int, sublayers: int, **factory: Any) -> StreamsReadout:
        """The sum of the streams: no parameters."""
        return StreamsReadout(scale=float(self.streams))


class HyperSite(StreamsSite):
    """Static coefficients plus bounded ones that each stream makes for itself.

    Parameters: `pre`, `post` (N), `res` (N, N) from row to column; `w_pre`, `w_post` (D), `w_res` (D, N); `s_pre`,
    `s_res`, `s_post` (1).
    """

    pre: nn.Parameter
    post: nn.Parameter
    res: nn.Parameter
    w_pre: nn.Parameter
    w_post: nn.Parameter
    w_res: nn.Parameter
    s_pre: nn.Parameter
    s_post: nn.Parameter
    s_res: nn.Parameter

    def __init__(self, config: HyperConnections, dim: int, home: int, factory: Mapping[str, Any]) -> None:
        n = config.streams
        super().__init__(n, dim, home, config.eps)
        static = {"pre": ((n,), 0.0), "res": ((n, n), 0.0), "post": ((n,), 1.0)}
        dynamic = {"w_pre": ((dim,), 0.0), "w_res": ((dim, n), 0.0), "w_post": ((dim,), 0.0)}
        scales = dict.fromkeys(("s_pre", "s_res", "s_post"), ((1,), 0.01))
        self.add_parameters(factory, **static, **dynamic, **scales)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reads its home stream, writes to all, mixes none; what is dynamic starts at 0 with a scale of 0.01."""
        super().reset_parameters()
        self.pre[self.home] = 1.0
        self.res.fill_diagonal_(1.0)

    def read_streams(self, streams_TND: Tensor, norm: NextNorm | None = None) -> StreamRead:
        """All coefficients from one projection, whose rows are pre, res (one a column of `res`), post."""
        weight = torch.cat((self.w_pre.unsqueeze(0), self.w_res.t(), self.w_post.unsqueeze(0)))
        static = torch.cat((self.pre.unsqueeze(0), self.res.t(), self.post.unsqueeze(0)))
        scale = torch.cat((self.s_pre, self.s_res.expand(self.streams), self.s_post))
        return hyper_read(streams_TND, weight, static, scale, self.eps, norm=norm)


@kind("hyper-connections")
@dataclasses.dataclass(frozen=True, kw_only=True)
class HyperConnections(StreamsConnection):
    """Hyper-Connections in their dynamic form (arXiv 2409.19606). See `StreamsConnection` for the attributes."""

    def make_site(self, index: int, dim: int, sublayers: int, **factory: Any) -> HyperSite:
        """Site `index`, whose home is the stream `index mod n`."""
        return HyperSite(self, dim, index % self.streams, factory)
