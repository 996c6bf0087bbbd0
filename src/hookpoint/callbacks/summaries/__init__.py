"""Summaries, and functions called at each step or epoch."""
