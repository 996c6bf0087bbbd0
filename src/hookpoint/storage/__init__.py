"""Files: checkpoints, who may write them, and which of them stay."""
