"""Readers of runs in remote storage."""
