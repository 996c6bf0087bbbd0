"""Save and load one checkpoint for all ranks."""
