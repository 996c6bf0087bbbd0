"""Traces of a run, and timeouts for slow steps."""
