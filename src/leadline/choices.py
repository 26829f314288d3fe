"""Names that options take, apart from what they mean, so that reading a command line loads nothing else."""

from __future__ import annotations

from typing import Literal

Backend = Literal["auto", "reference", "lean", "compiled", "triton"]
"""Of the depth operators, see `leadline.ops.choice`."""
Precision = Literal["float32", "bfloat16"]
By = Literal["tokens", "depth", "width", "depth+tokens", "width+tokens"]
"""What makes the costs of two stacks equal, see `leadline.designs.equal`."""
