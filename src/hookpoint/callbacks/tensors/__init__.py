"""Print, dump and average the tensors of a step."""
