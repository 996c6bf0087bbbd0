"""Count samples, slice arrays into batches, and call handlers while data is loaded."""
