"""The heart of hookpoint: points, callbacks, hooks, schedules, run and loop, on the standard library alone."""
