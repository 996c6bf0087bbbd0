"""One checkpoint: its folder, manifest and files."""
