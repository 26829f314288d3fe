"""What machine a comparison ran on, for its results."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory and versions, as `results.json` keeps them."""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory_bytes": _memory(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "platform": platform.platform(),
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0
