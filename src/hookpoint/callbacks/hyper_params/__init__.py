"""Change settings during a run: by schedule, by metric or by hand."""
