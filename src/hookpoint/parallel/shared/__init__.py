"""Code that multiple strategies share."""
