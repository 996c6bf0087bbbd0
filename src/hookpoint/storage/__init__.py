"""Storage: write, read and verify checkpoints, and manage the folder of a run."""
