"""Verdicts: what callbacks ask of the loop, honoured at the next boundary."""

from __future__ import annotations


class Reached(str):
    """Why a run stops that has come to the end it was given, such as `max_steps`: it is finished, not stopped."""

    __slots__ = ()


class Verdicts:
    """What is asked of the run and of the epoch; what is asked of an iteration is kept with the iteration.

    `stop` lasts: a stopped run starts no further iteration. `stop_epoch` ends the training passes of this epoch. `asked` is
    the one thing an iteration looks at: whether anything may have been asked.
    """

    __slots__ = ("asked", "reason", "stop", "stop_epoch")

    def __init__(self) -> None:
        self.asked = self.stop = self.stop_epoch = False
        self.reason = ""

    def ask_stop(self, reason: str) -> bool:
        """Ask the run to stop; say whether this was the first to ask. The first reason is the one that is kept."""
        if self.stop:
            return False
        self.stop, self.reason, self.asked = True, reason, True
        return True

    def ask_stop_epoch(self) -> None:
        self.stop_epoch = self.asked = True

    def begin_epoch(self) -> None:
        """Forget what was asked of the last epoch."""
        self.stop_epoch, self.asked = False, self.stop
