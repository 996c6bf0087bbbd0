"""One checkpoint for all ranks."""
