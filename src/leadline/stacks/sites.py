"""Watching what goes through a model's sites, without changing the model.

`watch` puts a function of ours in front of `read` and `write` of every site, and of `forward` of the readout, as
attributes of these instances; they go away when the context ends, after an error too. A read that takes the norm over
never has in hand what it read: that is read once more, without gradients, and the model's own numbers stay to the bit.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from leadline.connections.additive import AdditiveSite
from leadline.connections.base import Readout, Site, State
from leadline.errors import LeadlineError
from leadline.ops.next_norm import NextNorm

MISSING = object()
T = TypeVar("T")
R = TypeVar("R")
_WATCHED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Watcher:
    """What `watch` tells. Override what is of use; sites are numbered from 0 in the order of the sublayers."""

    def on_read(self, index: int, site: Site, state: State, read: Tensor) -> None:
        """Site `index` read `read`, of shape (..., dim), from `state`; for its values, not for gradients."""

    def on_write(self, index: int, site: Site, output: Tensor) -> None:
        """A sublayer's `output`, of shape (..., dim), is about to be written at site `index`; see `as_it_joins`."""

    def on_readout(self, readout: Readout, state: State, output: Tensor) -> None:
        """The readout gave `output`, of shape (..., dim)."""


def as_it_joins(site: Site, output: Tensor) -> Tensor:
    """What is added to the stream of a sublayer's `output` (..., dim): times its gain under LayerScale and ReZero.

    In connections of several streams or sources an output joins as it is, whatever a gate then makes of it.
    """
    gain = site.branch_gain if isinstance(site, AdditiveSite) else None
    return output if gain is None else output * gain


def sites_of(model: nn.Module) -> list[Site]:
    """The model's sites in the order of its sublayers: what its method `sites` says, or else as registered.

    Raises:
        LeadlineError: the model has none.
    """
    told = getattr(model, "sites", None)
    if callable(told) and not isinstance(told, nn.Module):
        found = list(told())
    else:
        found = [module for module in model.modules() if isinstance(module, Site)]
    if not found:
        raise LeadlineError(f"{type(model).__name__} has no connection sites, so there is no depth to measure")
    return found


def readout_of(model: nn.Module) -> Readout | None:
    """The model's readout: its attribute `readout`, or else the last one registered; None where it has none."""
    told = getattr(model, "readout", None)
    if isinstance(told, Readout):
        return told
    found = [module for module in model.modules() if isinstance(module, Readout)]
    return found[-1] if found else None


@contextlib.contextmanager
def watch(model: nn.Module, watcher: Watcher) -> Iterator[None]:
    """Tells `watcher` of every read, write and readout until the context ends.

    Raises:
        LeadlineError: the model is being watched already, or has no sites.
    """
    sites, readout = sites_of(model), readout_of(model)
    if any(site in _WATCHED for site in sites):
        raise LeadlineError("this model is being recorded already; end that record before the next begins")
    with contextlib.ExitStack() as stack:
        _WATCHED.update(sites)
        stack.callback(_WATCHED.difference_update, sites)
        for index, site in enumerate(sites):
            read, tell_read = site.read, _read_told(index, site, watcher)
            if site.takes_norm:
                replace(stack, site, "read_normed", _read_beside(site.read_normed, read, tell_read))
            replace(stack, site, "read", _telling(read, tell_read))
            replace(stack, site, "write", _watched_write(index, site, watcher))
        if readout is not None:
            forward, tell = readout.forward, functools.partial(watcher.on_readout, readout)
            if readout.takes_norm:
                replace(stack, readout, "read_normed", _read_beside(readout.read_normed, forward, tell))
            replace(stack, readout, "forward", _telling(forward, tell))
        yield


def _telling(read: Callable[[State], T], tell: Callable[[State, T], None]) -> Callable[[State], T]:
    """A read whose result is told."""

    def told(state: State) -> T:
        result = read(state)
        tell(state, result)
        return result

    return told


def _read_beside(
    inner: Callable[[State, NextNorm], T], read: Callable[[State], R], tell: Callable[[State, R], None]
) -> Callable[[State, NextNorm], T]:
    """A read that takes the norm over: what it would have read without the norm is read once more, and told."""

    def told(state: State, norm: NextNorm) -> T:
        with torch.no_grad():
            result = read(state)
        tell(state, result)
        return inner(state, norm)

    return told


def _read_told(index: int, site: Site, watcher: Watcher) -> Callable[[State, tuple[Tensor, State]], None]:
    return lambda state, read: watcher.on_read(index, site, state, read[0])


def _watched_write(index: int, site: Site, watcher: Watcher) -> Callable[[State, Tensor], State]:
    inner = site.write

    def write(state: State, output: Tensor) -> State:
        watcher.on_write(index, site, output)
        return inner(state, output)

    return write


def replace(stack: contextlib.ExitStack, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
    """Puts `function` before the module's own attribute `name` until `stack` ends."""
    before = module.__dict__.get(name, MISSING)
    module.__dict__[name] = function
    stack.callback(_restore, module, name, before)


def _restore(module: nn.Module, name: str, before: object) -> None:
    if before is MISSING:
        module.__dict__.pop(name, None)
    else:
        module.__dict__[name] = before
