"""Summaries, and operations at each step or epoch."""
