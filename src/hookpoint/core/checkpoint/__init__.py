"""The contents of a checkpoint, and the protocols that a checkpoint store implements."""
