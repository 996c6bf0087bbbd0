"""The step of a Runner: forward and loss, backward, accumulation, clipping, precision."""
