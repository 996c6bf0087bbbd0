"""Commands from outside: what a loop needs from a source of commands, and what it offers in return."""
