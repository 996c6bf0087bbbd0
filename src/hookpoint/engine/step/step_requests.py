"""Step requests: apply a callback's request to skip or retry to the forward, the backward and the step."""

from __future__ import annotations

from hookpoint.core.errors import StopRun
from hookpoint.core.run.iteration import Iteration
from hookpoint.core.run.run import Run, now_of, set_payload
from hookpoint.core.run_view import Dispatch
from hookpoint.engine.data.as_loader import described


def wants(now: Iteration, part: str) -> bool:
    """Return whether an iteration with a request must still do a part of its work: "backward" or "step"."""
    now.skips_were_read = True
    return not now.is_discarded and part not in now.skipped


def is_computed(forward: Dispatch, run: Run) -> bool:
    """Run a forward outside training. Return whether the batch counts, that is, no callback skipped or retried it."""
    now = now_of(run)
    try:
        forward(run)
    except Exception as error:
        if not recovered(run, now, error):
            raise
    return not (now.has_requests and now.is_discarded)


def recovered(run: Run, now: Iteration, error: Exception) -> bool:
    """Fire on_iter_error for a failed step. Return whether a callback requested to retry or skip the step."""
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
        set_payload(run, {})  # the error keeps frames alive whose memory a retry may need
    return now.is_discarded
