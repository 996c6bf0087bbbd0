"""Points around any function."""
