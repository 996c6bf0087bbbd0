"""Which checkpoints are asked for, and which of them are kept."""
