"""Step requests: what a callback's request to skip or retry means for a forward, a backward and a step."""

from __future__ import annotations

from hookpoint.core.errors import StopRun
from hookpoint.core.run.iteration import Iteration
from hookpoint.core.run.run import Run, now_of, set_payload
from hookpoint.core.run_view import Dispatch
from hookpoint.engine.data.as_loader import described


def wants(now: Iteration, part: str) -> bool:
    """Return whether "backward" or "step" is still to be done in an iteration with a request."""
    now.skips_were_read = True
    return not now.is_discarded and part not in now.skipped


def is_computed(forward: Dispatch, run: Run) -> bool:
    """Run a forward outside training. Return whether the batch counts, which means that no callback skipped or retried it."""
    now = now_of(run)
    try:
        forward(run)
    except Exception as error:
        if not recovered(run, now, error):
            raise
    return not (now.has_requests and now.is_discarded)


def recovered(run: Run, now: Iteration, error: Exception) -> bool:
    """Fire on_iter_error for a step that failed. Return whether a callback requested to retry or skip it."""
    if isinstance(error, StopRun):
        return False
    error.add_note(f"in the step of batch {now.batch_idx}, {described(now.batch)} (step {run.step}, rank {run.rank})")
    handle = run.hooks.dispatch("on_iter_error", mode=run.mode)
    if handle is None:
        return False
    set_payload(run, {"error": error})
    try:
        handle(run)
    finally:
        set_payload(run, {})  # the error holds its frames, and they hold memory that a retry may need
    return now.is_discarded
