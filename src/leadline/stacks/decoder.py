"""Leadline's own decoder as a stack of blocks, with whatever connection it has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from leadline.connections.base import Readout, Site, State
from leadline.models import Decoder
from leadline.stacks.base import Stack, StackWatcher, Unit
from leadline.stacks.scale import ignores_size
from leadline.stacks.sites import Watcher, as_it_joins, replace, watch

SITES = {"attention": "attn_site", "mlp": "mlp_site"}
"""The sublayers that a block can have, in their order, and the attribute that holds each one's site."""


class DecoderStack(Stack):
    """A `leadline.models.Decoder`. A unit is left out as its connection leaves it out.

    Args:
        model: is not changed; what `watching` and `skipping` put into it goes away again.
    """

    model: Decoder

    def __init__(self, model: Decoder) -> None:
        self.model = model
        numbers = {site: number for number, site in enumerate(model.sites())}
        self._numbers: list[dict[str, int]] = []
        for block in model.blocks:
            found = {name: getattr(block, attribute, None) for name, attribute in SITES.items()}
            self._numbers.append({name: numbers[site] for name, site in found.items() if isinstance(site, Site)})
        self.blocks = len(self._numbers)
        self.sublayers = tuple(tuple(names) for names in self._numbers)

    @property
    def context(self) -> int:
        """The length of training sequences in tokens."""
        return self.model.config.context

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.model.config.vocab_size

    @property
    def norms_scale(self) -> bool:
        """Whether every norm before a sublayer ignores the size of what it reads."""
        norms = [
            getattr(block, f"{name}_norm")
            for block, names in zip(self.model.blocks, self.sublayers, strict=True)
            for name in names
        ]
        return all(ignores_size(norm, self.model.config.dim) for norm in norms)

    def parameters_of(self, unit: Unit) -> dict[str, nn.Parameter]:
        """The parameters of a block, or of a sublayer with its norms and its site."""
        self.check([unit])
        name = unit.sublayer
        parts = None if name is None else {name, f"{name}_norm", f"{name}_output_norm", SITES[name]}
        return self.parameters_under(f"blocks.{unit.block}.", parts)

    def logits(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        logits: Tensor = self.model(tokens)
        return logits

    def lens(self, hidden: Tensor) -> Tensor:
        """The final norm and the head: (..., D) to (..., V)."""
        return self.model.logits(self.model.final_norm(hidden))

    @contextlib.contextmanager
    def watching(self, watcher: StackWatcher) -> Iterator[None]:
        """Tells `watcher` of every forward pass until the context ends; see `Stack.watching`."""
        places = {number: (block, name) for block, names in enumerate(self._numbers) for name, number in names.items()}
        told = _Told(places, watcher, self._exit)
        hidden = self.model.hidden

        def watched_hidden(*args: Any, **kwargs: Any) -> Tensor:
            with told.a_pass():
                return hidden(*args, **kwargs)

        with contextlib.ExitStack() as stack:
            stack.enter_context(watch(self.model, told))
            replace(stack, self.model, "hidden", watched_hidden)
            yield

    @contextlib.contextmanager
    def skipping(self, units: Collection[Unit]) -> Iterator[None]:
        """Leaves units out of every forward pass, generation too, until the context ends; see `Stack.skipping`."""
        self.check(units)
        numbers: set[int] = set()
        for unit in units:
            own = self._numbers[unit.block]
            numbers.update(own.values() if unit.sublayer is None else (own[unit.sublayer],))
        run = self.model.run

        def skipping_run(*args: Any, skip: Collection[int] = (), **kwargs: Any) -> State:
            return run(*args, skip=numbers.union(skip), **kwargs)

        with contextlib.ExitStack() as stack:
            replace(stack, self.model, "run", skipping_run)
            yield

    def _exit(self, state: State) -> Tensor:
        """What the readout makes of a state along depth.

        Without gradients where the backward pass recomputes blocks or streams, which a second read would disturb.
        """
        inverts = getattr(self.model.config.connection, "memory", "store") == "invert"
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.model.recompute and not inverts):
            exit_: Tensor = type(self.model.readout).forward(self.model.readout, state)
        return exit_


class _Told(Watcher):
    """Turns reads and writes of sites into blocks and sublayers."""

    def __init__(
        self, places: dict[int, tuple[int, str]], watcher: StackWatcher, exit_of: Callable[[State], Tensor]
    ) -> None:
        self._places = places
        self._watcher = watcher
        self._exit_of = exit_of
        self._running = False
        self._block: int | None = None
        self._before: Tensor | None = None

    @contextlib.contextmanager
    def a_pass(self) -> Iterator[None]:
        """A forward pass. What is read outside of it, when a block is recomputed for gradients, is not told twice."""
        self._running = True
        try:
            yield
        finally:
            self._running, self._block, self._before = False, None, None

    def on_read(self, index: int, site: Site, state: State, read: Tensor) -> None:
        if not self._running:
            return
        block, _ = self._places[index]
        if block != self._block:
            if self._block is not None and self._watcher.wants_exits:
                self._watcher.on_exit(self._block, self._exit_of(state))
            self._end_block(read)
            self._block, self._before = block, read

    def on_write(self, index: int, site: Site, output: Tensor) -> None:
        if self._running:
            self._watcher.on_sublayer(*self._places[index], as_it_joins(site, output))

    def on_readout(self, readout: Readout, state: State, output: Tensor) -> None:
        if not self._running:
            return
        if self._block is not None and self._watcher.wants_exits:
            self._watcher.on_exit(self._block, output)
        self._end_block(output)

    def _end_block(self, after: Tensor) -> None:
        if self._block is not None and self._before is not None:
            self._watcher.on_block(self._block, self._before, after)
        self._block, self._before = None, None
