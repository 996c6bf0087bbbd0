"""Fire points before and after each call of a function."""
