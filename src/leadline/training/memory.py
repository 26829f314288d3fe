"""How much memory this process has used."""

from __future__ import annotations

import ctypes
import resource
import sys

import torch

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""What glibc's `mallopt` calls them."""


def keep_freed_memory() -> None:
    """Lets glibc keep what a step has freed for the next one, on Linux; does nothing elsewhere.

    Otherwise the activations of every step are given back to the system and faulted in again, page by page: 4 % of a
    step at 24 blocks of width 128. The process keeps its peak until it ends.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(MMAP_THRESHOLD, 2**30)


def peak_memory(device: torch.device) -> int:
    """The largest memory in bytes so far: of the GPU where one is used, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
