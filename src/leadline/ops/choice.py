"""Which implementation of an operator runs, by one rule for every operator.

| backend | what it is | where it runs |
|---|---|---|
| reference | plain PyTorch and its autograd: the truth | everywhere |
| lean | hand-written gradients in plain PyTorch | everywhere |
| compiled | lean, its bodies compiled by Inductor | a CPU with a C++ compiler |
| triton | fused kernels | CUDA and ROCm with Triton; on a CPU under Triton's interpreter |

A backend asked for by name runs or raises, with one exception: where this version of PyTorch lacks a private function
that compiling takes, "compiled" is lean, and says so once. "auto" takes triton on a GPU where Triton is installed, else
lean, and says once where it would have taken something faster.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import warnings
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from leadline.choices import Backend
from leadline.errors import UsageError
from leadline.ops.compiled_body import missing_in_torch

Implementation = Literal["reference", "lean", "compiled", "triton"]

BACKENDS: tuple[Backend, ...] = ("auto", "reference", "lean", "compiled", "triton")

_forced: list[Backend] = ["auto"]


@contextlib.contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Makes `backend="auto"` mean `backend` inside the block, in this process.

    Raises:
        UsageError: the name is not known.
    """
    _check(backend)
    _forced.append(backend)
    try:
        yield
    finally:
        _forced.pop()


def chosen(backend: Backend, like: Tensor) -> Implementation:
    """The implementation that runs on tensors such as `like`.

    Raises:
        UsageError: the name is not known, or a backend asked for by name can't run here; the message says why.
    """
    if backend == "auto":
        backend = _forced[-1]
        if backend == "auto":
            return _automatic(like)
    if backend in ("reference", "lean"):
        return backend
    _check(backend)
    reason = why_not(backend, like.device.type)
    if reason is not None:
        raise UsageError(f"backend={backend!r} can't run here: {reason}; lean and reference run everywhere")
    if backend == "compiled":
        if torch.compiler.is_compiling():  # the outer compiler sees through lean's bodies
            return "lean"
        if (missing := missing_in_torch()) is not None:
            _say_once(f"backend 'compiled' runs as 'lean': torch {torch.__version__} has no {missing}")
            return "lean"
    return backend


def why_not(backend: Backend, device: str) -> str | None:
    """Why a backend can't run on a kind of device ("cpu", "cuda", ...); None where it can."""
    if backend == "triton":
        return _why_not_triton(device)
    if backend == "compiled" and device not in ("cpu", "meta"):
        return f"its bodies are compiled for a CPU, and the tensors are on {device}"
    if backend == "compiled":
        return _why_not_compiled()
    return None


def check_backend(backend: Backend, device: str) -> None:
    """Raises UsageError where `--backend` names one that can't run on a kind of device ("cpu", "cuda", ...)."""
    reason = why_not(backend, device)
    if reason is not None:
        raise UsageError(f"--backend {backend} can't run here: {reason}; auto, lean and reference can")


def _automatic(like: Tensor) -> Implementation:
    if not like.is_cuda:
        return "lean"
    reason = why_not("triton", "cuda")
    if reason is None:
        return "triton"
    _say_once(f"depth operators run as plain PyTorch on the GPU (backend lean): {reason}")
    return "lean"


@functools.cache
def _say_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def _why_not_triton(device: str) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install 'leadline[triton]')"
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if device != "cuda":
        return f"the tensors are on {device}; it runs on CUDA and ROCm, or on a CPU with TRITON_INTERPRET=1"
    return None


@functools.cache
def _why_not_compiled() -> str | None:
    from torch._inductor import config

    names = config.cpp.cxx if isinstance(config.cpp.cxx, list | tuple) else (config.cpp.cxx,)
    wanted = [os.environ["CXX"]] if "CXX" in os.environ else [name for name in names if name]
    if any(shutil.which(name) for name in wanted):
        return None
    return f"there is no C++ compiler ({', '.join(wanted)} not found; install g++, or set CXX)"


def _check(backend: str) -> None:
    if backend not in BACKENDS:
        raise UsageError(f"backend={backend!r} is not known; {', '.join(BACKENDS[:-1])} and {BACKENDS[-1]} work")
