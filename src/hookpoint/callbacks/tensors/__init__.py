"""Print, dump and average any tensor of a step."""
