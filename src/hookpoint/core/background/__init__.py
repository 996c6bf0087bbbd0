"""Asynchronous callbacks: snapshots of what they read, and their calls in the background."""
