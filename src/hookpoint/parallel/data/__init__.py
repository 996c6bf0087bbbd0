"""Which samples each process gets."""
