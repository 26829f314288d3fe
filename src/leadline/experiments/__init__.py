"""Whole experiments: many runs, their measurements, a verdict, and one report. `calls` has them as functions."""
