"""Validation passes during training, and the metrics they measure."""
