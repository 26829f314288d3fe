"""What every connection is made of: a configuration, sites, a readout, and a state that travels.

    depth = connection.build(dim, sublayers)
    state = depth.open(x)                                  # x: (batch, time, dim)
    for site, sublayer in zip(depth.sites, sublayers):
        h, state = site.read(state)
        state = site.write(state, sublayer(h))
    x = depth.readout(state)

A state is a NamedTuple of tensors and tuples of tensors. Sites never mutate it. All indices become data when
the stack is built: no site looks its position up later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leadline.errors import UsageError
from leadline.ops.next_norm import NextNorm, normed

State = Any
"""A connection's own NamedTuple of tensors and tuples of tensors."""


class Site(nn.Module):
    """One sublayer's place in depth. Owns only its own parameters.

    Attributes:
        scale: what a read here is worth in residual streams at the zero-query start; the norm that
            reads it uses `eps * scale**2`.
    """

    scale: float
    takes_norm: ClassVar[bool] = False
    """Whether `read_normed` can fold the norm into the read."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def read(self, state: State) -> tuple[Tensor, State]:
        """What this sublayer sees of depth: `(h, state)` with h of shape (..., dim) in the state's dtype."""
        raise TypeError(f"{type(self).__name__} does not define read")

    def read_normed(self, state: State, norm: NextNorm) -> tuple[Tensor, State]:
        """`read`, with the norm of h in place of h: in one operator where the backend has one, with the same result."""
        h, state = self.read(state)
        return normed(h, norm), state

    def write(self, state: State, output: Tensor) -> State:
        """How the sublayer's output, of h's shape, joins depth. The output is cast to the state's dtype."""
        raise TypeError(f"{type(self).__name__} does not define write")

    def skip(self, state: State) -> State:
        """Leaves this sublayer out for the whole batch: no source, no gate, no mixing, no post-norm."""
        return state

    def inspect(self, state: State) -> dict[str, Tensor]:
        """What the connection would do in a read of `state` here, for probes: detached float tensors by name.

        The names used: `weights` (..., sources or streams) for a read's weights, `gates` (..., streams),
        `mixing` (..., streams, streams), `streams` (streams, ..., dim).
        """
        return {}

    def reset_parameters(self) -> None:
        """Sets the starting values, after meta-device construction too."""


class Readout(nn.Module):
    """The last read: `readout(state)` gives x of shape (..., dim) for the final norm and the head."""

    scale: float
    takes_norm: ClassVar[bool] = False
    """As a site's."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, state: State) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define forward")

    def read_normed(self, state: State, norm: NextNorm) -> Tensor:
        """The norm of x, as `Site.read_normed`."""
        return normed(self(state), norm)

    def inspect(self, state: State) -> dict[str, Tensor]:
        """As `Site.inspect`."""
        return {}

    def reset_parameters(self) -> None:
        """Sets the starting values, after meta-device construction too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Connection:
    """The whole configuration of how sublayers read from depth and write back.

    Attributes:
        state_dtype: the dtype that travels over depth, as a name ("float32", "bfloat16"); None takes the input's.
    """

    kind: ClassVar[str]
    state_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.state_dtype is not None and not isinstance(getattr(torch, self.state_dtype, None), torch.dtype):
            raise UsageError(
                f"state_dtype={self.state_dtype!r} is no dtype; float32, bfloat16, float16 and float64 work"
            )

    def build(
        self,
        dim: int,
        sublayers: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Depth:
        """Builds the sites and the readout of a stack of `sublayers` sublayers of width `dim`.

        Args:
            device: where parameters are made; "meta" makes none until `to_empty` and `reset_parameters`.
            dtype: of the parameters; float32 unless given.

        Raises:
            UsageError: the options do not fit this width or depth.
        """
        if dim < 1:
            raise UsageError(f"dim={dim} must be at least 1")
        if sublayers < 0:
            raise UsageError(f"sublayers={sublayers} must not be negative")
        self.check(dim, sublayers)
        kwargs = {"device": device, "dtype": dtype or torch.float32}
        sites = [self.make_site(index, dim, sublayers, **kwargs) for index in range(sublayers)]
        return Depth(self, dim, sites, self.make_readout(dim, sublayers, **kwargs))

    def check(self, dim: int, sublayers: int) -> None:
        """Raises UsageError where the options do not fit; called by `build`."""

    def open(self, x: Tensor) -> State:
        """The state before the first sublayer. Has no parameters; fixes the dtype that travels."""
        raise TypeError(f"{type(self).__name__} does not define open")

    def prefetch(self, state: State, upcoming_sites: Sequence[Site]) -> State:
        """May compute ahead what the given sites will read; never changes a result."""
        return state

    def look_ahead(self, state: State, sites: Sequence[Site]) -> Sequence[Site]:
        """Of the sites to come, those that are worth a `prefetch` now."""
        return ()

    def pack(self, state: State) -> tuple[Tensor, ...]:
        """Flushes what is pending and flattens the state for a pipeline hop."""
        raise TypeError(f"{type(self).__name__} does not define pack")

    def unpack(self, tensors: Sequence[Tensor], site: Site | Readout) -> State:
        """The inverse of `pack`, on the stage that begins with `site`."""
        raise TypeError(f"{type(self).__name__} does not define unpack")

    def make_site(self, index: int, dim: int, sublayers: int, **factory: Any) -> Site:
        raise TypeError(f"{type(self).__name__} does not define make_site")

    def make_readout(self, dim: int, sublayers: int, **factory: Any) -> Readout:
        raise TypeError(f"{type(self).__name__} does not define make_readout")

    def state_tensor(self, x: Tensor) -> Tensor:
        """`x` in the dtype that travels."""
        return x if self.state_dtype is None else x.to(getattr(torch, self.state_dtype))


class Depth(nn.Module):
    """A connection built for one stack of width `dim`: `sites`, `readout`, and the calls that have no parameters."""

    def __init__(self, connection: Connection, dim: int, sites: Sequence[Site], readout: Readout) -> None:
        super().__init__()
        self.connection = connection
        self.dim = dim
        self.sites = nn.ModuleList(sites)
        self.readout = readout

    def open(self, x: Tensor) -> State:
        """The state before the first sublayer, from x of shape (..., dim).

        Raises:
            UsageError: x has another width.
        """
        if x.dim() == 0 or x.shape[-1] != self.dim:
            raise UsageError(
                f"x of shape {tuple(x.shape)} has another width than dim={self.dim}, which this was built for"
            )
        return self.connection.open(x)

    def prefetch(self, state: State, upcoming_sites: Sequence[Site]) -> State:
        """May compute ahead what the given sites will read; never changes a result."""
        return self.connection.prefetch(state, upcoming_sites)

    def pack(self, state: State) -> tuple[Tensor, ...]:
        """Flushes and flattens the state for a pipeline hop."""
        return self.connection.pack(state)

    def unpack(self, tensors: Sequence[Tensor], site: Site | Readout) -> State:
        """The inverse of `pack`, on the stage that begins with `site`."""
        return self.connection.unpack(tensors, site)
