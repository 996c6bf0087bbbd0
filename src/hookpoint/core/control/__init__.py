"""External commands: the interfaces between a loop and a source of commands."""
