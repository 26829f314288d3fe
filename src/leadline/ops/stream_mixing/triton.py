"""Residual streams as fused kernels, on CUDA and ROCm: one file for each width step and one for the depth step.

What each moves is said there. Results are the same from run to run: no atomics, partial sums added in a fixed order.
Second derivatives raise. Streams keep their dtype; no float32 copy of them is made.
"""

from leadline.ops.stream_mixing.triton_hyper import hyper_read
from leadline.ops.stream_mixing.triton_manifold import manifold_read
from leadline.ops.stream_mixing.triton_write import write_streams

__all__ = ["hyper_read", "manifold_read", "write_streams"]
