"""Averaged weights."""
