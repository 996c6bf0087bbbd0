"""Atomic file operations."""
