"""Bytes kept for the backward pass, and the most memory alive at once."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


def saved_for_backward(
    forward: Callable[[], object], parameters: Iterable[Tensor], beside: Callable[[], int] = lambda: 0
) -> int:
    """Bytes of the storages that autograd keeps while `forward` runs, each counted once and whole.

    Args:
        forward: its result is kept until the count is made, so that nothing is freed early.
        parameters: kept anyway, so their storages don't count.
        beside: bytes that are kept elsewhere than in autograd's graph, asked once `forward` is done.
    """
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    held: list[Tensor] = []
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and storage.nbytes() > 0:
            found[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    total = sum(found.values()) + beside()
    del result
    held.clear()
    return total


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """The most bytes of tensors alive at once while `step` runs, over what was alive before it.

    On a GPU it is what PyTorch's allocator counts. On a CPU it is the running sum of the allocations and frees that
    PyTorch's own allocator reports to its profiler; what a matrix library takes for itself is not in it.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with _quiet():
        profile.start()
    try:
        step()
    finally:
        with _quiet():
            profile.stop()
    results = profile.profiler.kineto_results if profile.profiler is not None else None
    if results is None:
        return 0
    events: list[Any] = [event for event in results.events() if event.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most


def parameter_bytes(parameters: Iterable[Tensor]) -> int:
    """Bytes of the parameters, each storage once."""
    return sum({p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in parameters}.values())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Swallows what the profiler's own code writes to standard error when it starts and stops."""
    sys.stderr.flush()
    kept = os.dup(2)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(sink)
