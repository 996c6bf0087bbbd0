"""Callback, and other ways to write a callback."""
