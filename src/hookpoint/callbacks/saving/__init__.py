"""When to save checkpoints, and which of them to keep."""
