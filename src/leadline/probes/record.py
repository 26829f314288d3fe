"""The depth record: how large reads and outputs are along depth, and what the connection shows of itself.

    with record(model, inspect=True) as depth:
        model(tokens)
    depth.read_rms        # one number per sublayer, and the readout's

Cheap enough for training: one reduction per read and write, on the model's device, without waiting for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leadline.connections.base import Readout, Site, State
from leadline.errors import LeadlineError, UsageError
from leadline.probes.watch import Watcher, block_starts, has_sites, sites_of, watch
from leadline.stacks import Stack, StackWatcher, stack_of
from leadline.stacks.sites import as_it_joins

Rows = list[Any]
"""One entry per site, and one for the readout: nested lists of floats, or None where there is nothing."""


class _Mean:
    """A mean over tokens that grows by batches and keeps one small tensor."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.tokens = 0

    def add(self, total: Tensor, tokens: int, what: str) -> None:
        if tokens == 0:
            return
        if self.total is not None and self.total.shape != total.shape:
            raise LeadlineError(
                f"{what} had {list(self.total.shape)} entries before and has {list(total.shape)} now; "
                "record forward passes that skip different layers apart"
            )
        self.total = total if self.total is None else self.total + total
        self.tokens += tokens

    def value(self) -> Any:
        return None if self.total is None else (self.total / self.tokens).tolist()


class _Sum(NamedTuple):
    """What goes into a mean once it is known to count."""

    mean: _Mean
    total: Tensor
    tokens: int
    what: str

    def add(self) -> None:
        self.mean.add(self.total, self.tokens, self.what)


def _rms(mean: _Mean, x: Tensor) -> list[_Sum]:
    """The summed root mean square over the width; nothing of nothing."""
    dim = x.shape[-1]
    if dim == 0 or x.numel() == 0:
        return []
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    length = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=dtype)
    return [_Sum(mean, length.sum() / dim**0.5, length.numel(), "a read or an output")]


class DepthRecord(Watcher):
    """What `record` collects; all values are means over the tokens seen, in float32.

    With N sublayers, a value is None where nothing came by (a skipped sublayer). Where a pass is read out several times
    (`Decoder.exits`), the last readout counts. A pass begins with a read of a site no deeper than the last one read.

    Args:
        firsts: the number of each block's first sublayer.
    """

    def __init__(self, sublayers: int, *, inspect: bool, firsts: Sequence[int]) -> None:
        self.sublayers = sublayers
        self.firsts = tuple(firsts)
        self._inspect = inspect
        self._reads = [_Mean() for _ in range(sublayers + 1)]
        self._outputs = [_Mean() for _ in range(sublayers)]
        self._shown: dict[str, list[_Mean]] = {}
        self._last = -1
        self._readout: list[_Sum] = []

    @property
    def read_rms(self) -> Rows:
        """The root mean square over the width of what each sublayer read; the last is the readout's: N+1 floats.

        A readout that sums n streams (hyper-connections) counts as their mean, so that it compares with the reads.
        """
        self._end_pass()
        return [mean.value() for mean in self._reads]

    @property
    def output_rms(self) -> Rows:
        """The same of what each sublayer gave to depth, times its gain under LayerScale and ReZero: N floats."""
        return [mean.value() for mean in self._outputs]

    @property
    def block_output_rms(self) -> Rows:
        """The size of depth after each block: what the next block reads, and the readout for the last."""
        reads = self.read_rms
        return [*(reads[first] for first in self.firsts[1:]), reads[-1]]

    @property
    def connection(self) -> dict[str, Rows]:
        """What the connection shows, by name: `weights`, `gates`, `mixing` (each entry's mean over tokens) and
        `diversity` (see `diversity`). Rows: one per site and the readout, ragged, None where a site shows nothing.
        """
        self._end_pass()
        return {name: [mean.value() for mean in means] for name, means in self._shown.items()}

    def on_read(self, index: int, site: Site, state: State, read: Tensor) -> None:
        if index <= self._last:
            self._end_pass()
        self._last = index
        with torch.no_grad():
            self._add_rms(self._reads[index], read)
            if self._inspect:
                self._show(index, site.inspect(state))

    def on_write(self, index: int, site: Site, output: Tensor) -> None:
        with torch.no_grad():
            self._add_rms(self._outputs[index], as_it_joins(site, output))

    def on_readout(self, readout: Readout, state: State, output: Tensor) -> None:
        with torch.no_grad():
            # A readout that sums n streams is worth n of them; its size is compared with reads of one.
            self._readout = _rms(self._reads[self.sublayers], output / max(1.0, readout.scale))
            if self._inspect:
                self._show(self.sublayers, readout.inspect(state))

    def _end_pass(self) -> None:
        """The readout at hand is the pass's last one."""
        waiting, self._readout = self._readout, []
        for one in waiting:
            one.add()

    def _add_rms(self, mean: _Mean, x: Tensor) -> None:
        for one in _rms(mean, x):
            one.add()

    def _show(self, index: int, shown: dict[str, Tensor]) -> None:
        for name, value in shown.items():
            if name == "streams":
                name, value, kept = "diversity", diversity(value), 0
            else:
                kept = 2 if name == "mixing" else 1
            value = value.detach()
            value = value if value.dtype == torch.float64 else value.float()
            leading = value.dim() - kept
            tokens = value.shape[:leading].numel()
            total = value.sum(dim=tuple(range(leading))) if leading else value
            means = self._shown.setdefault(name, [_Mean() for _ in range(self.sublayers + 1)])
            one = _Sum(means[index], total, tokens, f"{name} at site {index}")
            if index == self.sublayers:
                self._readout.append(one)
            else:
                one.add()


class StackRecord(DepthRecord, StackWatcher):
    """The record of a model without sites: the inputs and outputs of blocks, and the outputs of sublayers.

    What a block's later sublayers read is not known from outside, so their `read_rms` is None.
    """

    def __init__(self, stack: Stack) -> None:
        widths = [len(names) for names in stack.sublayers]
        self._firsts = [sum(widths[:block]) for block in range(stack.blocks)]
        super().__init__(sum(widths), inspect=False, firsts=self._firsts)
        self._names = stack.sublayers
        self._after = [_Mean() for _ in widths]

    @property
    def block_output_rms(self) -> Rows:
        """The size of the stream after each block."""
        return [mean.value() for mean in self._after]

    def on_block(self, block: int, before: Tensor, after: Tensor) -> None:
        with torch.no_grad():
            self._add_rms(self._after[block], after)
            if self._names[block]:
                self._add_rms(self._reads[self._firsts[block]], before)
            if block == len(self._after) - 1:
                self._add_rms(self._reads[-1], after)

    def on_sublayer(self, block: int, sublayer: str, output: Tensor) -> None:
        with torch.no_grad():
            self._add_rms(self._outputs[self._firsts[block] + self._names[block].index(sublayer)], output)


@contextlib.contextmanager
def record(model: nn.Module | Stack, *, inspect: bool = False, sites_per_block: int = 2) -> Iterator[DepthRecord]:
    """Collects a `DepthRecord` from every forward pass of `model` until the context ends.

    Works for any model that reads and writes through `Site`s and a `Readout`, and for any other that
    `leadline.stacks.stack_of` knows. The model computes the same numbers, gradients too. Recomputed activations pass
    twice and leave the means as they are.

    Args:
        model: the model, or the stack that it was made into.
        inspect: also collect what the connection shows of itself; costs about as much as another read.
        sites_per_block: how many sites make a block, for `block_output_rms`; a `Decoder` says it itself.

    Raises:
        LeadlineError: the model is being recorded already, or has neither sites nor blocks that are found.
    """
    module = model.model if isinstance(model, Stack) else model
    if has_sites(module):
        depth = DepthRecord(len(sites_of(module)), inspect=inspect, firsts=block_starts(module, sites_per_block))
        with watch(module, depth):
            yield depth
        return
    stack = _stack(model)
    shown = StackRecord(stack)
    with stack.watching(shown):
        yield shown


def _stack(model: nn.Module | Stack) -> Stack:
    if isinstance(model, Stack):
        return model
    try:
        return stack_of(model)
    except UsageError as error:
        raise UsageError(f"{type(model).__name__} has no connection sites to record, and {error}") from error


def diversity(streams: Tensor) -> Tensor:
    """1 − the mean cosine over pairs of streams, per token: 0 where all point one way, 1 where they are orthogonal.

    Args:
        streams: (streams, ..., dim). One stream has diversity 0; a zero stream counts as orthogonal.

    Returns:
        (...) in float32, or float64 for float64. The measure is ours, after the picture in arXiv 2605.23259.
    """
    count = streams.shape[0]
    streams = streams.detach()
    streams = streams if streams.dtype == torch.float64 else streams.float()
    if count < 2:
        return streams.new_zeros(streams.shape[1:-1])
    unit = nn.functional.normalize(streams, dim=-1, eps=1e-20)
    off_diagonal = unit.sum(dim=0).square().sum(dim=-1) - unit.square().sum(dim=-1).sum(dim=0)
    return 1.0 - off_diagonal / (count * (count - 1))
