"""The fused multi-gate step: its cases in `interpreted/multi_gate.py`, under Triton's interpreter."""

from __future__ import annotations

from triton_interpreter import run_interpreted


def test_under_the_interpreter() -> None:
    run_interpreted("multi_gate")
