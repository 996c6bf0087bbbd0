"""A Runner's training step: forward and loss, backward, accumulation, clipping and precision."""
