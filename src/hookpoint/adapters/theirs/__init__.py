"""Callbacks of other libraries in a hookpoint run."""
