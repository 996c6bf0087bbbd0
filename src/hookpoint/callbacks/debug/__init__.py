"""Callbacks that open a shell inside a run, or start background processes."""
