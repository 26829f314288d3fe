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

import copy
import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.errors import UsageError
from leadline.ops.next_norm import NextNorm, normed


class State(Protocol):
    """What travels over depth, from `depth.open(x)` through every site to `depth.readout(state)`.

    Each connection has its own, a NamedTuple whose fields are tensors and tuples of tensors, in the dtype that `open`
    fixed: `AdditiveState`, `AttentionState`, `MultiGateState`, and `StreamsState` (hyper-connections), all in
    `leadline.connections`. Annotate with `ll.State` whatever takes and returns one, such as a block's `forward`.
    A state is never changed in place, so an earlier one stays valid; `depth.pack(state)` flattens it.
    """

    @property
    def _fields(self) -> tuple[str, ...]: ...

    def _asdict(self) -> dict[str, Any]: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


S = TypeVar("S", bound=State)


class GainlessRMSNorm(nn.Module):
    """RMSNorm over the last dimension, whatever its size: no parameters."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) to (..., dim), in x's dtype; statistics in float32 or wider."""
        return F.rms_norm(x, x.shape[-1:], eps=self.eps)

    def extra_repr(self) -> str:
        return f"eps={self.eps}"


def _divided(scale: float, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (args[0] / scale, *args[1:])


class Read(nn.Module, Generic[S]):
    """What a site and the readout have in common: they read depth.

    Attributes:
        scale: what a read here is worth in residual streams at the zero-query start; the norm that
            reads it uses `eps * scale**2`, see `norm`.
    """

    scale: float
    takes_norm: ClassVar[bool] = False
    """Whether `read_normed` can fold the norm into the read."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self._starts: dict[str, float] = {}

    def add_parameters(self, factory: Mapping[str, Any], **starts: tuple[tuple[int, ...], float] | None) -> None:
        """Makes parameters and sets them to their start.

        Args:
            factory: device and dtype.
            starts: by name the shape and the number that all entries start at; None for a parameter that isn't there.
        """
        for name, start in starts.items():
            if start is None:
                self.register_parameter(name, None)
            else:
                self.register_parameter(name, nn.Parameter(torch.empty(start[0], **factory)))
                self._starts[name] = start[1]
        self.reset_parameters()

    def norm(self, norm: nn.Module | float) -> nn.Module:
        """The norm that follows a read here: `norm` with `eps * scale**2` in place of its eps.

        With it a start that equals PreNorm's does so exactly: a mean of k sources, whose `scale` is 1/k, is normalised
        as their sum would be. Call it when the model is built.

        Args:
            norm: a module, such as `nn.LayerNorm(dim)` or a Hugging Face model's RMSNorm; or a number, the eps of an
                RMSNorm of any width without a gain: `F.rms_norm(x, x.shape[-1:], eps=eps)`.

        Returns:
            A module. `norm` itself is not changed. The two share their parameters and buffers, so register either:
            state-dict keys stay those of `norm`. A module without a number `eps` or `variance_epsilon` (nanoGPT's
            LayerNorm, whose eps is in its code; `nn.RMSNorm` with eps=None) divides its input by `scale` instead,
            which gives the same up to rounding.

        Raises:
            UsageError: `norm` is neither a module nor a number of 0 or more.
        """
        if not isinstance(norm, nn.Module):
            if not isinstance(norm, int | float) or not norm >= 0:
                raise UsageError(f"norm={norm!r} should be a module, such as nn.LayerNorm(dim), or an eps such as 1e-6")
            return GainlessRMSNorm(norm * self.scale**2)
        scaled = copy.copy(norm)  # the same dictionaries of parameters and buffers
        for name in ("eps", "variance_epsilon"):
            eps = getattr(norm, name, None)
            if isinstance(eps, float):
                setattr(scaled, name, eps * self.scale**2)
                return scaled
        if self.scale != 1.0:
            scaled._forward_pre_hooks = OrderedDict(norm._forward_pre_hooks)
            scaled.register_forward_pre_hook(functools.partial(_divided, self.scale))
        return scaled

    def inspect(self, state: S) -> dict[str, Tensor]:
        """What the connection would do in a read of `state` here, for probes: detached float tensors by name.

        The names used: `weights` (..., sources or streams) for a read's weights, `gates` (..., streams),
        `mixing` (..., streams, streams), `streams` (streams, ..., dim).
        """
        return {}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Sets the starting values, after meta-device construction too."""
        for name, start in self._starts.items():
            self.get_parameter(name).fill_(start)


class Site(Read[S]):
    """One sublayer's place in depth. Owns only its own parameters.

    `site(state, sublayer)` reads, calls the sublayer and writes; see `forward`.
    """

    def forward(self, state: S, sublayer: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Reads depth, calls `sublayer(h, *args, **kwargs)`, and writes what it returns.

            state = self.mlp_site(state, lambda h: self.mlp(self.mlp_norm(h)))
            state, weights = self.attn_site(state, self.attn, mask, cache=cache)      # this one has its norm inside

        Args:
            state: from `depth.open` or the site before.
            sublayer: a norm and what follows it, without `x +`: takes h of shape (..., dim) in the state's dtype and
                returns a tensor of that shape, or a tuple that begins with one.
            *args: passed on to the sublayer.
            **kwargs: likewise.

        Returns:
            The next state; where the sublayer returned a tuple `(output, *rest)`, the tuple `(state, *rest)`.

        Raises:
            UsageError: the sublayer returned neither a tensor nor a tuple that begins with one.
        """
        h, state = self.read(state)
        output = sublayer(h, *args, **kwargs)
        parts = output if isinstance(output, tuple) else (output,)
        if not parts or not isinstance(parts[0], Tensor):
            raise UsageError(
                f"{name_of(sublayer)} returned {type(output).__name__}; "
                "a sublayer returns a tensor, or a tuple that begins with one"
            )
        state = self.write(state, parts[0])
        return (state, *parts[1:]) if parts is output else state

    def read(self, state: S) -> tuple[Tensor, S]:
        """What this sublayer sees of depth: `(h, state)` with h of shape (..., dim) in the state's dtype."""
        raise TypeError(f"{type(self).__name__} does not define read")

    def read_normed(self, state: S, norm: NextNorm) -> tuple[Tensor, S]:
        """`read`, with the norm of h in place of h: in one operator where the backend has one, with the same result."""
        h, state = self.read(state)
        return normed(h, norm), state

    def write(self, state: S, output: Tensor) -> S:
        """How the sublayer's output, of h's shape, joins depth. The output is cast to the state's dtype."""
        raise TypeError(f"{type(self).__name__} does not define write")

    def skip(self, state: S) -> S:
        """Leaves this sublayer out for the whole batch: no source, no gate, no mixing, no post-norm."""
        return state


class Readout(Read[S]):
    """The last read: `readout(state)` returns x of shape (..., dim) for the final norm and the head."""

    def forward(self, state: S) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define forward")

    def read_normed(self, state: S, norm: NextNorm) -> Tensor:
        """The norm of x, as `Site.read_normed`."""
        return normed(self(state), norm)


def name_of(sublayer: Callable[..., Any]) -> str:
    """What a message calls a sublayer: its function's name, or its class's."""
    return getattr(sublayer, "__name__", type(sublayer).__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Connection(Generic[S]):
    """The whole configuration of how sublayers read from depth and write back.

    Attributes:
        state_dtype: the dtype that travels over depth, as a name ("float32", "bfloat16"); None takes the input's.
    """

    kind: ClassVar[str]
    state_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.state_dtype is not None and not isinstance(getattr(torch, self.state_dtype, None), torch.dtype):
            raise UsageError(
                f"state_dtype={self.state_dtype!r} is not a dtype; float32, bfloat16, float16 and float64 work"
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

    @property
    def two_phase(self) -> bool:
        """Whether `prefetch` reads anything ahead."""
        return False

    def open(self, x: Tensor) -> S:
        """The state before the first sublayer. Has no parameters; fixes the dtype that travels."""
        raise TypeError(f"{type(self).__name__} does not define open")

    def prefetch(self, state: S, upcoming_sites: Sequence[Site[S]]) -> S:
        """May compute ahead what the given sites will read; never changes a result."""
        return state

    def look_ahead(self, state: S, sites: Sequence[Site[S]]) -> Sequence[Site[S]]:
        """Of the sites to come, those that are worth a `prefetch` now."""
        return ()

    def pack(self, state: S) -> tuple[Tensor, ...]:
        """Flushes what is pending and flattens the state for a pipeline hop."""
        raise TypeError(f"{type(self).__name__} does not define pack")

    def unpack(self, tensors: Sequence[Tensor], site: Site[S] | Readout[S]) -> S:
        """The inverse of `pack`, on the stage that begins with `site`."""
        raise TypeError(f"{type(self).__name__} does not define unpack")

    def make_site(self, index: int, dim: int, sublayers: int, **factory: Any) -> Site[S]:
        raise TypeError(f"{type(self).__name__} does not define make_site")

    def make_readout(self, dim: int, sublayers: int, **factory: Any) -> Readout[S]:
        raise TypeError(f"{type(self).__name__} does not define make_readout")

    def state_tensor(self, x: Tensor) -> Tensor:
        """`x` in the dtype that travels."""
        return x if self.state_dtype is None else x.to(getattr(torch, self.state_dtype))


class Depth(nn.Module):
    """A connection built for one stack of width `dim`: `sites`, `readout`, and the calls that have no parameters."""

    folded: bool = False
    """Whether `fold` has looked at the sublayers."""

    def __init__(self, connection: Connection[Any], dim: int, sites: Sequence[Site], readout: Readout) -> None:
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
