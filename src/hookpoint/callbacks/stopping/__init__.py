"""When to end a run."""
