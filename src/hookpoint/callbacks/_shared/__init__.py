"""Code shared by the callback folders."""
