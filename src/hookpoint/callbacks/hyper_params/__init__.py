"""Settings that change during a run: by schedule, by metric, by hand."""
