"""Messages to people and programs."""
