"""Start one process per rank."""
