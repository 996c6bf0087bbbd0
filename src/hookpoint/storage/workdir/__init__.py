"""The workdir: lock a run's folder, find the checkpoint to resume from, and link checkpoints by name."""
