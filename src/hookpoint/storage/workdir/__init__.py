"""The folder of a run: lock it, find a checkpoint to resume from, decide which are kept."""
