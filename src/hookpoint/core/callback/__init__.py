"""Callback, and the other ways to write one."""
