"""Callbacks that print tensors, write them to files, or average them over steps."""
