"""Asking: what callbacks ask of the loop through the run; it is honoured at the next boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import OutsideIteration
from hookpoint.core.run.iteration import NO_ITERATION
from hookpoint.core.run.verdicts import Verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hookpoint.core.checkpoint.store import Keep


class Asking:
    """The verdicts of a run, and its saves."""

    __slots__ = ()

    def stop(self: Any, reason: str = "run.stop() was called", *, alike: bool = False) -> None:
        """Stop the run at the next boundary: no further iteration starts; the end points still fire.

        In a run of several processes all of them stop, one step later. Whoever says `alike` knows that every process asks for
        the same at this point, and is not kept waiting. The same holds for `stop_epoch` and `save`.
        """
        self._loop.settle()
        if Verdicts.ask_stop(self._verdicts, reason) if alike else self._verdicts.ask_stop(reason):
            self.put_event("stop", reason=reason)

    @property
    def stop_reason(self: Any) -> str | None:
        """Why the run is to stop, or has stopped; None where nobody has asked for it."""
        return self._verdicts.reason if self._verdicts.stop else None

    def request_stop(self: Any) -> None:
        """Stop the run, in MindSpore's words."""
        self.stop("request_stop() was called")

    def stop_epoch(self: Any, *, alike: bool = False) -> None:
        """End this epoch's training at the next boundary; in a validation or prediction pass, end that pass."""
        self._loop.stop_epoch(alike=alike)

    def skip_batch(self: Any) -> None:
        """Leave this batch out: asked before the iteration's body, the body does not run; on_iter_skip fires."""
        self._ask_skip("batch")

    def skip_backward(self: Any) -> None:
        """Leave out the backward pass and the step of this iteration. In a loop of one's own the body asks `run.skipped`."""
        self._ask_skip("backward")

    def skip_step(self: Any) -> None:
        """Leave out the optimizer's step of this iteration. In a loop of one's own the body asks `run.skipped`."""
        self._ask_skip("step")

    def retry(self: Any) -> None:
        """Run this batch again, from on_iter_begin, as often as the loop allows; on_iter_skip fires for this attempt."""
        self._loop.settle()
        if self._now is NO_ITERATION:
            raise OutsideIteration("retry()")
        if self._loop.agreement is not None and self.mode == "train":
            self._loop.agreement.refuse_retry()
        self._now.ask_retry()

    def save(
        self: Any,
        tag: str = "manual",
        *,
        keep: Keep | None = None,
        in_background: bool = False,
        alike: bool = False,
        measured: Mapping[str, Any] | None = None,
    ) -> None:
        """Ask for a checkpoint with this tag; it is written after the last handler of this point, at a step boundary.

        `keep` says which of the checkpoints with this tag are kept; without it all are. In the background, the run waits
        only until the state is copied. `measured` is the value that it is saved for, which its manifest then has: metric,
        mode, value, and the epoch, iteration and step it was measured at.
        """
        self._loop.settle()
        agreement = self._loop.agreement
        (self._loop.saving.ask if agreement is None or alike else agreement.ask_save)(tag, keep, in_background, measured)

    def _ask_skip(self: Any, what: str) -> None:
        self._loop.settle()
        if self._now is NO_ITERATION:
            raise OutsideIteration(f"skip_{what}()")
        if self._loop.agreement is not None and self.mode == "train":
            self._now.refuse_if_ended(f"skip_{what}")
            self._loop.agreement.ask_skip(what)
        else:
            self._now.ask_skip(what)
