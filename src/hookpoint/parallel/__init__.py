"""Training with multiple processes: ranks, communication between ranks, and strategies for training one model on all ranks."""
