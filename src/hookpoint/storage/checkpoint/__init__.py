"""A single checkpoint: its folder, its manifest and its files."""
