"""Start multiple processes."""
