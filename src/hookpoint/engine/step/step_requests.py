"""Step requests: carry out a callback's request to skip or retry a batch, or to skip its backward pass or optimizer step."""

from __future__ import annotations

import torch

from hookpoint.core.errors import BadLoop, StopRun
from hookpoint.core.run.iteration import Iteration
from hookpoint.core.run.run import Run, now_of, set_payload
from hookpoint.core.run_view import Dispatch
from hookpoint.engine.data.as_loader import described

# Parts of the messages that torch and Python raise for the backward pass of a number or of a tensor without a gradient.
NO_GRADIENT = ("has no attribute 'backward'", "does not require grad", "outputs must be a Tensor")


def wants(now: Iteration, part: str) -> bool:
    """Return whether to run a part of the iteration: "backward" or "step".

    The part does not run if a callback has asked to skip this part, or to skip or retry the whole batch.
    """
    if now.is_discarded or part in now.skipped:
        now.skips_were_read = True
        return False
    return True


def reject_late_requests(run: Run, what: str, latest: str) -> None:
    """After an optimizer step, raise BadLoop if a callback has asked to skip it, or to skip or retry its batch."""
    now = now_of(run)
    if now.has_requests and not wants(now, "step"):
        raise BadLoop(what, request=f"it at {latest}")


def is_computed(forward: Dispatch, run: Run) -> bool:
    """Run a forward pass outside training. Return whether to use its outputs.

    The outputs are not used if a callback has asked to skip or retry the batch.
    """
    now = now_of(run)
    try:
        forward(run)
    except Exception as error:
        if not recovered(run, now, error):
            raise
    return not (now.has_requests and now.is_discarded)


def recovered(run: Run, now: Iteration, error: Exception) -> bool:
    """Fire on_iter_error for a failed step. Return whether a callback has asked to retry or skip the step.

    If no callback has asked for this, and the step failed because its loss has no gradient, raise BadLoop.
    """
    if isinstance(error, StopRun):
        return False
    explained = _explained(run, now, error)
    explained.add_note(f"in the step of batch {now.batch_idx}, {described(now.batch)} (step {run.step}, rank {run.rank})")
    is_handled = _is_handled(run, now, explained)
    if explained is not error and not is_handled:
        raise explained from error
    return is_handled


def _is_handled(run: Run, now: Iteration, error: Exception) -> bool:
    handle = run.hooks.dispatch("on_iter_error", mode=run.mode)
    if handle is None:
        return False
    now.reset_requests()  # a request from before the error does not handle the error
    set_payload(run, {"error": error})
    try:
        handle(run)
    finally:
        set_payload(run, {})  # the error's traceback keeps tensors alive, and a retry may need their memory
    return now.is_discarded


def _explained(run: Run, now: Iteration, error: Exception) -> Exception:
    """Return an error that explains the loss if the backward pass failed because the loss has no gradient."""
    if hasattr(error, "__notes__"):  # from a callback's own backward pass, which may differentiate something else than the loss
        return error
    loss, is_tensor = now.loss, isinstance(now.loss, torch.Tensor)
    has_gradient = loss is None or (is_tensor and loss.requires_grad)
    if run.mode != "train" or has_gradient or not any(part in str(error) for part in NO_GRADIENT):
        return error
    got = "a tensor without one" if is_tensor else f"a {type(loss).__name__}"
    return BadLoop(
        f"the loss must be a scalar tensor with a gradient, got {got}.",
        **{"return": "the tensor itself as the loss, without .item(), .detach() or float()"},
        check="that the loss is computed from outputs of the model, and that the model is not frozen",
    )
