"""Verdicts: requests from callbacks to the loop, honoured at the next boundary."""

from __future__ import annotations


class Reached(str):
    """The reason for a planned stop, such as `max_steps`. A run that stops for such a reason has the status "finished"."""

    __slots__ = ()


class Verdicts:
    """The requests that affect the run or the epoch. Requests that affect an iteration are stored in `Iteration`.

    `stop` is permanent: a stopped run starts no further iteration. `stop_epoch` ends this epoch's training passes.
    `has_requests` is True if there is any request. For speed, each iteration checks this attribute first.
    """

    __slots__ = ("has_requests", "reason", "stop", "stop_epoch")

    def __init__(self) -> None:
        self.has_requests = self.stop = self.stop_epoch = False
        self.reason = ""

    def request_stop(self, reason: str) -> bool:
        """Request a stop. Return whether this is the first request. Only the first reason is kept."""
        if self.stop:
            return False
        self.stop, self.reason, self.has_requests = True, reason, True
        return True

    def request_stop_epoch(self) -> None:
        self.stop_epoch = self.has_requests = True

    def begin_epoch(self) -> None:
        """Clear the requests from the last epoch."""
        self.stop_epoch, self.has_requests = False, self.stop
