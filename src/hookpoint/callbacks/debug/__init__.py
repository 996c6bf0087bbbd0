"""A shell inside a run, and background processes."""
