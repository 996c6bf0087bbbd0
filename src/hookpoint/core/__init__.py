"""The core of hookpoint: points, callbacks, hooks, schedules, run and loop. It needs only the standard library."""
