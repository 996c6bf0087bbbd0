"""Counting samples, batches of arrays, points in the data."""
