"""A shell inside a run, and processes beside it."""
