"""Traces, and steps that take too long."""
