"""Data shards: give each rank its part of the data."""
