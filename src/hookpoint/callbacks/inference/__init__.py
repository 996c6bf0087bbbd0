"""Validation beside training, and what it computes."""
