"""Logged values: means, metrics, records, and each monitor's queue."""
