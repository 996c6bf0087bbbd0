"""Compile a list of callbacks into calls for each point."""
