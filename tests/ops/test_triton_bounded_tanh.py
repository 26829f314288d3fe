"""The fused bounded tanh: its cases in `interpreted/bounded_tanh.py`, under Triton's interpreter."""

from __future__ import annotations

from triton_interpreter import run_interpreted


def test_under_the_interpreter() -> None:
    run_interpreted("bounded_tanh")
