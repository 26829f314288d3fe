"""What a pipeline of any size would send, hold and wait for, without the machines: `leadline bench pipeline`.

A model's blocks are cut into P·V chunks of consecutive ones; chunk c lies on rank c mod P (interleaved: V a rank).
Between two chunks the depth state travels, as `pack` flattens it. The state is run on PyTorch's fake tensors, so that
its tensors are counted and none is computed. A tensor that a later hop's state has too, in the same memory, such as a
finished block of Attention Residuals, need not travel again to a rank that has it:

    naive       every hop sends the whole state
    received    a rank keeps what it has received
    own         and what was made on it

Source: the cached hops are those of Attention Residuals (arXiv 2603.15031); keeping one's own is ours.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from leadline.connections import AttentionResiduals
from leadline.designs import count_flops
from leadline.errors import UsageError
from leadline.models import Decoder, DecoderConfig

Policy = Literal["naive", "received", "own"]
POLICIES: tuple[Policy, ...] = ("naive", "received", "own")
Kind = Literal["forward", "backward"]
Key = tuple[int, int]
"""A tensor's memory and its place in it."""
BACKWARD = 2.0
"""A chunk's backward pass takes so many forward passes [ours]."""


class Hop(NamedTuple):
    """What travels from one chunk to the next.

    Attributes:
        source, target: ranks.
        state: every tensor of the state, by its key and its bytes a token; a tensor that is handed on has one key.
        sent: the keys that travel, by policy.
    """

    source: int
    target: int
    state: dict[Key, int]
    sent: dict[Policy, list[Key]]

    def bytes(self, policy: Policy) -> int:
        """Bytes a token that travel forward; the gradients of as many travel back."""
        return sum(self.state[key] for key in self.sent[policy])


class Chunk(NamedTuple):
    """Consecutive blocks: how many, bytes that autograd keeps of them a token, and their forward FLOPs a token."""

    blocks: int
    saved: int
    flops: int


class Schedule(NamedTuple):
    """What came of running a schedule.

    Attributes:
        time: of a step, in `seconds`' unit.
        bubble: share of the ranks' time in which they wait.
        peak_bytes: of what each rank holds at once for backward passes.
    """

    time: float
    bubble: float
    peak_bytes: list[int]


def split(blocks: int, chunks: int) -> list[int]:
    """Blocks of each chunk; the first ones take what is left over. Raises UsageError where there are too few."""
    if chunks > blocks:
        raise UsageError(f"ranks × virtual is {chunks} chunks, and the model has {blocks} blocks; {blocks} is the most")
    return [blocks // chunks + (place < blocks % chunks) for place in range(chunks)]


def with_blocks_every(config: DecoderConfig, chunks: int, every: int) -> DecoderConfig:
    """The model with one block of Attention Residuals in every `every` chunks.

    Raises:
        UsageError: another connection, or chunks of unequal sizes.
    """
    if not isinstance(config.connection, AttentionResiduals):
        raise UsageError("--blocks-every sets the blocks of Attention Residuals, which attnres-block has")
    if config.sublayers % chunks:
        raise UsageError(f"--blocks-every needs chunks of equal size; {config.sublayers} sublayers in {chunks} are not")
    size = every * config.sublayers // chunks
    return dataclasses.replace(config, connection=dataclasses.replace(config.connection, block_size=size))


def plan(
    config: DecoderConfig, ranks: int, virtual: int, *, context: int = 64, dtype: str = "float32"
) -> tuple[list[Chunk], list[Hop]]:
    """The chunks of a model and the hops between them.

    Args:
        context: tokens that the state is run on; numbers are a token's.
        dtype: of matrices and activations, and so of the state.

    Raises:
        UsageError: there are fewer blocks than chunks.
    """
    sizes = split(len(config.block_layers), ranks * virtual)
    # Unlike on the meta device, attention takes the kernel that a processor takes.
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        model = Decoder(config, dtype=getattr(torch, dtype))
        tokens = torch.zeros(1, context, dtype=torch.int64)
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Any] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage  # held, so that no other gets its address
        return tensor

    def bytes_kept() -> int:
        return sum(storage.nbytes() for storage in kept.values()) // context

    counted = count_flops(config)
    flops = (counted.forward - counted.head) // len(config.block_layers)
    chunks: list[Chunk] = []
    states: list[dict[Key, int]] = []
    held: list[tuple[torch.Tensor, ...]] = []
    with fake, torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        state, at, first = model.begin(tokens), model.at(0, context), 0
        start = {_key(one) for one in config.connection.pack(state)}
        for size in sizes:
            before = bytes_kept()
            state = model.run(state, at, range(first, first + size))
            first += size
            chunks.append(Chunk(size, bytes_kept() - before, flops * size))
            packed = config.connection.pack(state)
            held.append(packed)  # so that memory stays one tensor's
            states.append({_key(one): one.numel() * one.element_size() // context for one in packed if one.numel()})
    chunks[-1] = chunks[-1]._replace(flops=chunks[-1].flops + counted.head)
    return chunks, hops(states, ranks, start)


def _key(tensor: torch.Tensor) -> Key:
    """Its memory: a source that is handed on is another tensor there."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def hops(states: Sequence[dict[Key, int]], ranks: int, start: Iterable[Key] = ()) -> list[Hop]:
    """What travels after every chunk but the last, by policy.

    Args:
        states: of every chunk, what it hands on: bytes a token by key.
        start: what the first chunk begins with; the first rank has received that.
    """
    received: list[set[Key]] = [set(start) if rank == 0 else set() for rank in range(ranks)]
    made: list[set[Key]] = [set() for _ in range(ranks)]
    found = []
    for chunk, state in enumerate(states[:-1]):
        source, target = chunk % ranks, (chunk + 1) % ranks
        made[source] |= state.keys() - (states[chunk - 1].keys() if chunk else set())
        lacking = [key for key in state if key not in received[target]]
        sent: dict[Policy, list[Key]] = {
            "naive": list(state),
            "received": lacking,
            "own": [key for key in lacking if key not in made[target]],
        }
        if source == target:
            sent = {policy: [] for policy in POLICIES}
        received[target] |= state.keys()
        found.append(Hop(source, target, state, sent))
    return found


def held_states(chunks: Sequence[Chunk], found: Sequence[Hop], ranks: int) -> list[int]:
    """Bytes a token of travelled tensors that a rank keeps for one micro-batch, each once."""
    keys: list[dict[Key, int]] = [{} for _ in range(ranks)]
    for hop in found:
        keys[hop.target] |= hop.state
    return [sum(each.values()) for each in keys]


def order(rank: int, ranks: int, virtual: int, micro_batches: int, kind: str) -> list[tuple[Kind, int, int]]:
    """What a rank does, in order: forward or backward, of which micro-batch, of which of its chunks (from 0).

    "gpipe" does all forward passes first. "1f1b" has them alternate, after as many forward passes as keep the ranks
    behind busy; with several chunks a rank it is the interleaved schedule (arXiv 2104.04473), in groups of `ranks`
    micro-batches.
    """
    steps = micro_batches * virtual
    group = ranks * virtual

    def place(step: int, forward: bool) -> tuple[int, int]:
        chunk = step // ranks % virtual
        return step // group * ranks + step % ranks, chunk if forward else virtual - 1 - chunk

    if virtual == 1:
        places = {forward: [(step, 0) for step in range(steps)] for forward in (True, False)}
    else:
        places = {forward: [place(step, forward) for step in range(steps)] for forward in (True, False)}
    ahead = ranks - rank - 1 if virtual == 1 else 2 * (ranks - rank - 1) + (virtual - 1) * ranks
    ahead = steps if kind == "gpipe" else min(ahead, steps)
    forwards: list[tuple[Kind, int, int]] = [("forward", *each) for each in places[True]]
    backwards: list[tuple[Kind, int, int]] = [("backward", *each) for each in places[False]]
    found = forwards[:ahead]
    for done in range(steps - ahead):
        found += [forwards[ahead + done], backwards[done]]
    return found + backwards[steps - ahead :]


def predict(
    chunks: Sequence[Chunk],
    found: Sequence[Hop],
    *,
    ranks: int,
    virtual: int,
    micro_batches: int,
    tokens: int,
    kind: str,
    policy: Policy,
    flops_per_second: float,
    bytes_per_second: float,
) -> Schedule:
    """Runs a schedule event by event; a hop delays the next chunk and keeps no rank from computing.

    Args:
        tokens: of a micro-batch.
        flops_per_second: of a rank.
        bytes_per_second: of a hop.

    Raises:
        UsageError: the interleaved schedule with a number of micro-batches that `ranks` does not divide.
    """
    if virtual > 1 and micro_batches % ranks:
        raise UsageError(f"--micro-batches {micro_batches} with --virtual {virtual}: a multiple of {ranks} works")
    last = len(chunks) - 1
    queues = [order(rank, ranks, virtual, micro_batches, kind) for rank in range(ranks)]
    ready: dict[tuple[Kind, int, int], float] = {("forward", micro, 0): 0.0 for micro in range(micro_batches)}
    free, busy, peak, now_held = [0.0] * ranks, [0.0] * ranks, [0] * ranks, [0] * ranks
    states = held_states(chunks, found, ranks)
    open_chunks = [[0] * micro_batches for _ in range(ranks)]
    at, waiting = [0] * ranks, [(0.0, rank) for rank in range(ranks)]
    heapq.heapify(waiting)
    while waiting:
        _, rank = heapq.heappop(waiting)
        if at[rank] == len(queues[rank]):
            continue
        what, micro, own = queues[rank][at[rank]]
        chunk = own * ranks + rank
        if (what, micro, chunk) not in ready:
            continue  # whoever makes it ready asks again
        begin = max(free[rank], ready[what, micro, chunk])
        duration = chunks[chunk].flops * tokens / flops_per_second * (1.0 if what == "forward" else BACKWARD)
        free[rank] = end = begin + duration
        busy[rank] += duration
        at[rank] += 1
        forward = what == "forward"
        opened = open_chunks[rank][micro]
        open_chunks[rank][micro] += 1 if forward else -1
        if (forward and opened == 0) or (not forward and opened == 1):
            now_held[rank] += (1 if forward else -1) * states[rank] * tokens
        now_held[rank] += (1 if forward else -1) * chunks[chunk].saved * tokens
        peak[rank] = max(peak[rank], now_held[rank])
        after = chunk + 1 if forward else chunk - 1
        if forward and chunk == last:
            ready["backward", micro, chunk] = end
        elif 0 <= after <= last:
            hop = found[min(chunk, after)]
            ready[what, micro, after] = end + hop.bytes(policy) * tokens / bytes_per_second
            heapq.heappush(waiting, (end, after % ranks))
        heapq.heappush(waiting, (end, rank))
    if any(done < len(queue) for done, queue in zip(at, queues, strict=True)):
        raise RuntimeError("a schedule that waits for itself")
    time = max(free)
    return Schedule(time, 1.0 - sum(busy) / (ranks * time), peak)
