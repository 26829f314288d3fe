"""Whole experiments on depth: many runs, their measurements, and a verdict per claim."""
