"""A few hundred bytes of text, and runs so small that one takes a fraction of a second."""

from __future__ import annotations

from training_runs import Config, config, data, lines

__all__ = ["Config", "config", "data", "lines"]
