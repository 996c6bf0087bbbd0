"""Loaders: their order, their position and how they resume."""
