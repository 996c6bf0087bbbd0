"""The board: a local page over run folders. Its server reads files, and writes nothing but commands to running trainings."""
