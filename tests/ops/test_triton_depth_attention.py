"""The fused depth-attention read: its cases in `interpreted/depth_attention.py`, under Triton's interpreter."""

from __future__ import annotations

from triton_interpreter import run_interpreted


def test_under_the_interpreter() -> None:
    run_interpreted("depth_attention")
