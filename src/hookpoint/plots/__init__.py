"""Drawing what runs have logged: what to draw is decided in plain objects, then drawn by matplotlib or in a terminal."""
