"""Logged values: means, metrics, records, and the queue to each monitor."""
