"""The run: what callbacks can read and request."""
