"""Commands from outside: what a loop asks of their source, and what it offers to it."""
