"""Schedules, which decide when something runs, and the clocks that they read."""
