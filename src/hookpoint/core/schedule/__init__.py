"""When something runs: schedules, and the clocks they read."""
