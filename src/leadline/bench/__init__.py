"""Speed and memory, side by side in one run: `leadline bench models|ops|decode`."""

from __future__ import annotations

from leadline.bench.decode import bench_decode
from leadline.bench.models import bench_models
from leadline.bench.operators import bench_operators

__all__ = ["bench_decode", "bench_models", "bench_operators"]
