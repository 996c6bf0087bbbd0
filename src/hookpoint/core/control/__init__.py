"""Commands from outside: what a loop needs from their source, and what it offers in return."""
