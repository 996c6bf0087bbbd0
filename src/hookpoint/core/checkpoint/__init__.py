"""What a checkpoint keeps of a run, and the protocol of a store."""
