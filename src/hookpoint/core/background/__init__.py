"""Asynchronous callbacks: copy the values that they read, and call their handlers in the background."""
