"""Start several processes."""
