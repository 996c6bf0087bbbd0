"""A list of callbacks, compiled into calls for each point."""
