"""The fused stream operators: their cases in `interpreted/stream_mixing.py`, under Triton's interpreter."""

from __future__ import annotations

from triton_interpreter import run_interpreted


def test_under_the_interpreter() -> None:
    run_interpreted("stream_mixing")
