"""The run: what a callback sees, and what it may ask for."""
