"""Recovery: what becomes of a step that failed."""

from __future__ import annotations

from hookpoint.core.errors import StopRun
from hookpoint.core.run.iteration import Iteration
from hookpoint.core.run.run import Run, now_of, set_payload
from hookpoint.core.run_view import Dispatch
from hookpoint.engine.data.as_loader import described


def is_computed(forward: Dispatch, run: Run) -> bool:
    """Run a forward outside of training; say whether the batch counts: whether nobody had it skipped or retried."""
    now = now_of(run)
    try:
        forward(run)
    except Exception as error:
        if not recovered(run, now, error):
            raise
    return not (now.has_requests and now.is_discarded)


def recovered(run: Run, now: Iteration, error: Exception) -> bool:
    """Ask the callbacks about a step that failed; say whether one of them wants it retried or skipped."""
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
        set_payload(run, {})  # an error keeps its frames, and they keep the memory that a retry may need
    return now.is_discarded
