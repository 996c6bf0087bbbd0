"""Runs that wait too long: for data, or for other processes."""
