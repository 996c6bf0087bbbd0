"""Compile a list of callbacks: determine which handlers to call at each point, and in which order."""
