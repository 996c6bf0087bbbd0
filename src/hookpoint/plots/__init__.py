"""Plots of logged metrics. Plain objects describe a figure, and a backend draws it with matplotlib or in the terminal."""
