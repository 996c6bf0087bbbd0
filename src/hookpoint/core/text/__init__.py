"""Spelling, secrets, terminal output."""
