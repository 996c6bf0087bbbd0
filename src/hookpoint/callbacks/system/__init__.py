"""Callbacks that log memory usage and GPU utilization, or control garbage collection."""
