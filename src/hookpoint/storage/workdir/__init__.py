"""The folder of a run: lock it, find the checkpoint to resume from, and select the checkpoints to keep."""
