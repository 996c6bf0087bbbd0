"""The schedule that applies to a callback in a run."""

from __future__ import annotations

from hookpoint.core.callback.callback import Callback
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.when import When


def schedule_in(run: Run, callback: Callback) -> When | None:
    """Return the schedule of a callback or of the pipeline that it is in."""
    return next((entry.schedule for entry in run.hooks.entries if entry.subject is callback), None)
