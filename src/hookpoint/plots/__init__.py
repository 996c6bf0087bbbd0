"""Plots of logged metrics: plain objects describe a figure, then matplotlib or the terminal draws it."""
