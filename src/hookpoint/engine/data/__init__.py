"""Data loaders: their sample order, their position in a pass, and how they resume."""
