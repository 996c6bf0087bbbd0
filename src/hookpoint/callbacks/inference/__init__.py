"""Validation passes during training, and what they measure."""
