"""Runs test files under Triton's interpreter, each in one process of its own.

Triton reads TRITON_INTERPRET when it is imported, and a test process may have imported it already, or may need it
without the interpreter. So kernels are tested in two files:

- `tests/ops/interpreted/NAME.py` holds the cases. It is an ordinary pytest file, but for its name, by which pytest does
  not collect it. It may import Triton and `leadline.ops.*.triton` at the top.
- `tests/ops/test_triton_NAME.py` runs it: `run_interpreted("NAME")`. It fails if any case fails, or if none ran, and
  shows what the inner pytest said.

The interpreter cuts float32 to bfloat16; a GPU rounds to nearest. `rounding_to_nearest` makes it round, so that errors
seen in tests are those of a GPU.

To work on the cases directly: `TRITON_INTERPRET=1 python -m pytest tests/ops/interpreted/NAME.py`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
LONGEST_SECONDS = 900


def run_interpreted(name: str, *arguments: str) -> None:
    """Runs `tests/ops/interpreted/NAME.py` under the interpreter; skips where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed (pip install 'leadline[triton]')")
    path = ROOT / "tests" / "ops" / "interpreted" / f"{name}.py"
    quiet = ("-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, str(path), *arguments],
        cwd=ROOT,
        env={**plain_environment(), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    if ran.returncode != 0:
        pytest.fail(f"{path.name} under the interpreter:\n{ran.stdout[-20000:]}\n{ran.stderr[-4000:]}", pytrace=False)


def plain_environment() -> dict[str, str]:
    """This process's environment without what pytest or the interpreter set in it, and with one thread."""
    dropped = ("TRITON_INTERPRET", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST")
    kept = {k: v for k, v in os.environ.items() if k not in dropped and not k.startswith("PYTEST_XDIST")}
    return {**kept, "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def rounding_to_nearest() -> Iterator[None]:
    """Inside the block float32 becomes bfloat16 by rounding to nearest, ties to even. Needs TRITON_INTERPRET=1."""
    from triton import language as tl
    from triton.runtime import interpreter

    cut = interpreter._convert_float

    def rounded(numbers: np.ndarray, source: Any, target: Any, mode: Any) -> np.ndarray:
        if (source, target) != (tl.float32, tl.bfloat16):
            return cut(numbers, source, target, mode)
        bits = np.ascontiguousarray(numbers).view(np.uint32).astype(np.uint64)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(numbers), np.uint16(0x7FC0), nearest).reshape(numbers.shape)

    with mock.patch.object(interpreter, "_convert_float", rounded):
        yield
