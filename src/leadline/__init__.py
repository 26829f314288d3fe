"""Leadline builds, trains, compares and measures the depth of Transformers."""

__version__ = "0.1.0"
