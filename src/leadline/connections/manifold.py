"""Manifold-constrained Hyper-Connections: mHC (arXiv 2512.24880) and mHC-lite (arXiv 2601.05732).

As Hyper-Connections, but the streams are mixed by a doubly stochastic matrix, which neither grows nor shrinks their
sum. With `v = rms(vec(H))` over all streams of a token,

    pre = σ(a_pre v φ_pre + b_pre)           h    = Σ_i pre_i H_i
    post = 2σ(a_post v φ_post + b_post)      H'_i = Σ_j M_ij H_j + post_i F(h)

    mHC       M = Sinkhorn(exp(a_res mat(v φ_res) + b_res))
    mHC-lite  M = Σ_r softmax(a_res v φ_res + b_res)_r P_r    over all n! permutations

N streams, T tokens, D width, R numbers that make a mixing: N² or N!.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leadline.config import check_choices, check_numbers, kind
from leadline.connections.hyper import StreamsConnection, StreamsSite
from leadline.errors import UsageError
from leadline.ops.next_norm import NextNorm
from leadline.ops.stream_mixing import StreamRead, manifold_read

MOST_PERMUTED = 5
"""The most streams whose permutations are all listed: 5! = 120, 6! = 720."""


class ManifoldSite(StreamsSite):
    """Coefficients made from all streams of a token together.

    Parameters: `phi_pre`, `phi_post` (N·D, N), `phi_res` (N·D, R); `b_pre`, `b_post` (N); `b_res` (N, N) for Sinkhorn,
    (N!) for Birkhoff; `a_pre`, `a_post`, `a_res` (1).
    """

    phi_pre: nn.Parameter
    phi_post: nn.Parameter
    phi_res: nn.Parameter
    b_pre: nn.Parameter
    b_post: nn.Parameter
    b_res: nn.Parameter
    a_pre: nn.Parameter
    a_post: nn.Parameter
    a_res: nn.Parameter

    def __init__(self, config: ManifoldHyperConnections, dim: int, home: int, factory: Mapping[str, Any]) -> None:
        n, sinkhorn = config.streams, config.mixing == "sinkhorn"
        super().__init__(n, dim, home, config.eps)
        self.mixing = config.mixing
        self.iterations = config.sinkhorn_iterations
        self.numbers = n**2 if sinkhorn else math.factorial(n)
        sizes = {"phi_pre": n, "phi_post": n, "phi_res": self.numbers}
        dynamic = {name: ((n * dim, size), 0.0) for name, size in sizes.items()}
        if sinkhorn:
            biases = {"b_pre": ((n,), -3.0), "b_post": ((n,), 0.0), "b_res": ((n, n), -3.0)}
        else:
            biases = {"b_pre": ((n,), -1.0), "b_post": ((n,), -1.0), "b_res": ((self.numbers,), -8.0)}
        scales = dict.fromkeys(("a_pre", "a_post", "a_res"), ((1,), 0.01))
        self.add_parameters(factory, **dynamic, **biases, **scales)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reads mostly its home stream and mixes little; what is dynamic starts at 0 with a scale of 0.01."""
        super().reset_parameters()
        if self.mixing == "sinkhorn":
            self.b_pre[self.home] = 3.0
            self.b_res.fill_diagonal_(3.0)
        else:
            self.b_pre[self.home] = self.b_post[self.home] = 1.0
            self.b_res[0] = 0.0

    def read_streams(self, streams_TND: Tensor, norm: NextNorm | None = None) -> StreamRead:
        """All coefficients from one projection, whose rows are pre, post, res."""
        weight = torch.cat((self.phi_pre.t(), self.phi_post.t(), self.phi_res.t()))
        bias = torch.cat((self.b_pre, self.b_post, self.b_res.view(-1)))
        sizes = zip((self.a_pre, self.a_post, self.a_res), (self.streams, self.streams, self.numbers), strict=True)
        scale = torch.cat([a.expand(size) for a, size in sizes])
        return manifold_read(streams_TND, weight, bias, scale, self.mixing, self.iterations, self.eps, norm=norm)


@kind("manifold-hyper-connections")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ManifoldHyperConnections(StreamsConnection):
    """mHC and mHC-lite. See `StreamsConnection` for `streams` and `eps`.

    Attributes:
        mixing: "sinkhorn" (mHC), nearly doubly stochastic; "birkhoff" (mHC-lite), exactly so, for up to 5 streams.
        sinkhorn_iterations: each normalises columns, then rows; the paper takes 20.

    Raises:
        UsageError: an unknown mixing, too many streams for "birkhoff", or no iterations.
    """

    mixing: Literal["sinkhorn", "birkhoff"] = "sinkhorn"
    sinkhorn_iterations: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, "is unknown")
        if self.mixing == "birkhoff" and self.streams > MOST_PERMUTED:
            raise UsageError(
                f"streams={self.streams} has {math.factorial(self.streams):,} permutations; mixing='birkhoff' takes at "
                f"most streams={MOST_PERMUTED}, mixing='sinkhorn' any number"
            )
        check_numbers(self, positive=("sinkhorn_iterations",))

    def make_site(self, index: int, dim: int, sublayers: int, **factory: Any) -> ManifoldSite:
        """Site `index`, whose home is the stream `index mod n`."""
        return ManifoldSite(self, dim, index % self.streams, factory)
