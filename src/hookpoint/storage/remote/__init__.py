"""Mirrors: copies of run folders in remote storage, with the same layout as the local folders."""
