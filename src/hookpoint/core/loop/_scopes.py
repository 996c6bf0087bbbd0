"""Scopes: the open epoch and passes, and how to close them after a `break`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hookpoint.core.logger import logger
from hookpoint.core.loop._passes import Pass


class Cleanup:
    """Functions to call at the end of a scope. Each function is called once, in reverse order of registration.

    A scope is a pass, or None for an epoch or a run. After a `break`, the end points of a pass fire late, perhaps after
    another step. After an exception, they never fire. Register a function here if a change must be undone immediately.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[object, Callable[[], object]]] = []

    def add(self, scope: object, function: Callable[[], object]) -> None:
        self._waiting.append((scope, function))

    def leave(self, scope: object, *, has_failed: bool = False) -> None:
        """Call the functions for this scope. Raise the first error, or log it if an exception is already propagating."""
        first: BaseException | None = None
        for item in [item for item in reversed(self._waiting) if item[0] is scope]:
            self._waiting.remove(item)
            try:
                item[1]()
            except BaseException as error:  # the remaining functions must still run
                if first is None and not (has_failed and isinstance(error, Exception)):
                    first = error
                else:
                    logger.error("%s: %s", type(error).__name__, error)
        if first is not None:
            raise first


@dataclass(slots=True, eq=False, repr=False)
class Scopes:
    """The open epoch and the open passes.

    If a `break` leaves passes or an epoch open, `abandoned` is set, and the next call to a method of the run closes them.
    `cut_short` is set if the epoch did not see all of its training data, or if a stop ended its validation early.
    """

    passes: list[Pass] = field(default_factory=list)  # from the outermost to the innermost pass
    passes_opened: int = 0  # the number of passes opened in this epoch, without nested passes
    epoch_is_open: bool = False
    cut_short: bool = False
    abandoned: bool = False
    epochs_abandoned: bool = False
    cleanup: Cleanup = field(default_factory=Cleanup)
    end_pass: Callable[..., None] = field(init=False)
    end_epoch: Callable[[], None] = field(init=False)

    def begin_epoch(self) -> None:
        self.passes_opened = 0
        self.epoch_is_open, self.cut_short, self.epochs_abandoned = True, False, False

    def settle(self) -> None:
        """Close the passes and the epoch that a `break` left open. Methods of the run such as `run.log` call this first."""
        if self.abandoned:
            self.abandoned = False
            first = next((number for number, pass_ in enumerate(self.passes) if pass_.abandoned), len(self.passes))
            self._close_from(first)
            if self.epochs_abandoned and not any(pass_.is_closing for pass_ in self.passes):
                self.close_epoch(cut_short=True)
            self.abandoned = self.epochs_abandoned  # the epoch cannot close while one of its passes is closing

    def close_above(self, pass_: Pass) -> None:
        """Close the passes that were opened inside this pass."""
        self._close_from(self.passes.index(pass_) + 1)

    def close_passes(self) -> None:
        self._close_from(0)

    def _close_from(self, number: int) -> None:
        # A pass may already be closing: a handler at its end points may call `run.log`, which closes abandoned passes.
        while len(self.passes) > number and not self.passes[-1].is_closing:
            self.passes[-1].was_superseded = True
            self.end_pass(self.passes[-1], complete=False)

    def close_epoch(self, *, cut_short: bool) -> None:
        """Close the open epoch and its passes, if any."""
        self.close_passes()
        if self.epoch_is_open:
            self.cut_short |= cut_short
            self.end_epoch()

    def drop(self) -> None:
        """Drop the open scopes after an exception, without firing their end points."""
        for pass_ in self.passes:
            self.drop_pass(pass_)
        self.passes.clear()
        self.epoch_is_open = False

    def drop_pass(self, pass_: Pass) -> None:
        pass_.drop()
        self.cleanup.leave(pass_, has_failed=True)
