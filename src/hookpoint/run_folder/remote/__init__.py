"""Read runs in remote storage."""
