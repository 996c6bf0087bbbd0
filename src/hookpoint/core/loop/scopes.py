"""Scopes: the epoch and the passes that are open, and how those that a `break` left open are closed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from hookpoint.core.loop._cleanup import Cleanup
from hookpoint.core.loop.passes import Pass


class EndPass(Protocol):
    def __call__(self, one: Pass, *, complete: bool) -> None: ...


class EndEpoch(Protocol):
    def __call__(self) -> None: ...


@dataclass(slots=True, eq=False)
class Scopes:
    """What is open. The machine changes it; saving, resuming and drivers read it.

    A `break` leaves passes, or an epoch, `abandoned`: they are closed by the next call of the run. `cut_short` says that the
    epoch did not see all of its training data, or that a stop cut off its validation.
    """

    passes: list[Pass] = field(default_factory=list)  # the innermost last
    passes_opened: int = 0  # of this epoch, those inside of others not counted
    epoch_is_open: bool = False
    cut_short: bool = False
    abandoned: bool = False
    epochs_abandoned: bool = False
    cleanup: Cleanup = field(default_factory=Cleanup)
    end_pass: EndPass = field(init=False)
    end_epoch: EndEpoch = field(init=False)

    def begin_epoch(self) -> None:
        self.passes_opened = 0
        self.epoch_is_open, self.cut_short, self.epochs_abandoned = True, False, False

    def settle(self) -> None:
        """Close what a `break` left behind. Every service of the run calls this first."""
        if self.abandoned:
            self.abandoned = False
            left = next((number for number, one in enumerate(self.passes) if one.abandoned), len(self.passes))
            self._close_from(left)
            if self.epochs_abandoned and not any(one.is_closing for one in self.passes):
                self.close_epoch(cut_short=True)
            self.abandoned = self.epochs_abandoned  # the epoch has to wait for a pass that is being closed at this moment

    def close_above(self, kept: Pass) -> None:
        """Close the passes that were opened inside of this one."""
        self._close_from(self.passes.index(kept) + 1)

    def close_passes(self) -> None:
        self._close_from(0)

    def _close_from(self, number: int) -> None:
        while len(self.passes) > number and not self.passes[-1].is_closing:  # a handler of its last points asks for this
            self.end_pass(self.passes[-1], complete=False)

    def close_epoch(self, *, cut_short: bool) -> None:
        """Close the epoch, and the passes in it, if one is open."""
        self.close_passes()
        if self.epoch_is_open:
            self.cut_short |= cut_short
            self.end_epoch()

    def drop(self) -> None:
        """Forget what is open, without its end points: an exception has cut it off."""
        for one in self.passes:
            self.drop_pass(one)
        self.passes.clear()
        self.epoch_is_open = False

    def drop_pass(self, one: Pass) -> None:
        one.drop()
        self.cleanup.leave(one, has_failed=True)
