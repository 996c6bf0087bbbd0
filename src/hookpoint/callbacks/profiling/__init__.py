"""Traces of runs, and timeouts for slow steps."""
