"""Fire points around any function."""
