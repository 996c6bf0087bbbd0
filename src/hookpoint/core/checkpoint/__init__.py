"""The contents of a checkpoint, and the protocol of a store."""
