"""Scopes: the open epoch and passes, and how those that a `break` left open are closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hookpoint.core.loop._cleanup import Cleanup
from hookpoint.core.loop.passes import Pass


class EndPass(Protocol):
    def __call__(self, pass_: Pass, *, complete: bool) -> None: ...


@dataclass(slots=True, eq=False)
class Scopes:
    """The open scopes. The machine changes them; saving, resuming and drivers read them.

    A `break` leaves passes, or an epoch, `abandoned`: the next call of the run closes them. `cut_short` is set if the epoch did
    not see all of its training data, or a stop cut off its validation.
    """

    passes: list[Pass] = field(default_factory=list)  # the innermost last
    passes_opened: int = 0  # in this epoch, without nested passes
    epoch_is_open: bool = False
    cut_short: bool = False
    abandoned: bool = False
    epochs_abandoned: bool = False
    cleanup: Cleanup = field(default_factory=Cleanup)
    end_pass: EndPass = field(init=False)
    end_epoch: Callable[[], None] = field(init=False)

    def begin_epoch(self) -> None:
        self.passes_opened = 0
        self.epoch_is_open, self.cut_short, self.epochs_abandoned = True, False, False

    def settle(self) -> None:
        """Close what a `break` left open. Every service of the run calls this first."""
        if self.abandoned:
            self.abandoned = False
            first = next((number for number, pass_ in enumerate(self.passes) if pass_.abandoned), len(self.passes))
            self._close_from(first)
            if self.epochs_abandoned and not any(pass_.is_closing for pass_ in self.passes):
                self.close_epoch(cut_short=True)
            self.abandoned = self.epochs_abandoned  # the epoch has to wait for a pass that is being closed

    def close_above(self, pass_: Pass) -> None:
        """Close the passes that were opened inside of this one."""
        self._close_from(self.passes.index(pass_) + 1)

    def close_passes(self) -> None:
        self._close_from(0)

    def _close_from(self, number: int) -> None:
        while len(self.passes) > number and not self.passes[-1].is_closing:  # a handler of its end points may call this
            self.end_pass(self.passes[-1], complete=False)

    def close_epoch(self, *, cut_short: bool) -> None:
        """Close the open epoch and its passes, if any."""
        self.close_passes()
        if self.epoch_is_open:
            self.cut_short |= cut_short
            self.end_epoch()

    def drop(self) -> None:
        """Forget the open scopes without their end points, after an exception."""
        for pass_ in self.passes:
            self.drop_pass(pass_)
        self.passes.clear()
        self.epoch_is_open = False

    def drop_pass(self, pass_: Pass) -> None:
        pass_.drop()
        self.cleanup.leave(pass_, has_failed=True)
