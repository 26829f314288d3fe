"""Designs trained side by side, their statistics, and one report: what `leadline compare` does."""
