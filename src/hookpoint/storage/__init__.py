"""Storage: write, read and verify checkpoints, and manage the run folder."""
