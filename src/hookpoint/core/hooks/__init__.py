"""A list of callbacks, compiled into ready calls per point."""
