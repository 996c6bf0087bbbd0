"""Levels: the passes and the epoch that a loop has open, and how they are closed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookpoint.core.hooks.costs import StepShare
    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.log.logbook import Logbook
    from hookpoint.core.loop._agreement import Agreement
    from hookpoint.core.loop._cleanup import Leaving
    from hookpoint.core.loop._resuming import Resuming
    from hookpoint.core.loop._saving import Saving
    from hookpoint.core.loop.missing_metrics import MissingMetrics
    from hookpoint.core.loop.passes import Pass
    from hookpoint.core.run.run import Run
    from hookpoint.core.schedule.clocks import Clocks

logger = logging.getLogger("hookpoint")


class Levels:
    """What a loop does at the borders of passes and epochs; a `break` leaves some open, which are closed later."""

    passes: list[Pass]
    passes_opened: int
    epoch_is_open: bool
    cut_short: bool
    abandoned: bool
    epochs_abandoned: bool
    agreement: Agreement | None
    clocks: Clocks
    hooks: Hooks
    leaving: Leaving
    logbook: Logbook
    missing: MissingMetrics
    resuming: Resuming
    saving: Saving
    share: StepShare
    running: Callable[[], Run]
    _run: Run | None

    def agree_now(self, what: str) -> None:
        """Let all processes of a team act on what any of them has asked for; all of them are at this point."""
        if self.agreement is not None:
            self.agreement.now(what)

    def settle(self) -> None:
        """Close what a `break` left behind. Every service of the run calls this first."""
        if self.abandoned:
            self.abandoned = False
            left_behind = next((number for number, one in enumerate(self.passes) if one.abandoned), len(self.passes))
            self._close_passes_from(left_behind)
            if self.epochs_abandoned and not any(one.is_closing for one in self.passes):
                self.close_open_epoch(cut_short=True)
            self.abandoned = self.epochs_abandoned  # the epoch has to wait for a pass that is being closed at this moment

    def is_in_epoch(self, run: Run, epoch: int) -> bool:
        return self._run is run and self.epoch_is_open and self.clocks.epoch == epoch

    def close_passes_above(self, kept: Pass) -> None:
        self._close_passes_from(self.passes.index(kept) + 1)

    def close_passes(self) -> None:
        """Close every pass that is still open."""
        self._close_passes_from(0)

    def _close_passes_from(self, number: int) -> None:
        while len(self.passes) > number and not self.passes[-1].is_closing:  # a handler of its last points asks for this
            self.passes[-1].close(complete=False)

    @property
    def epochs_opened(self) -> int:
        """How many epochs were opened; one that is to be gone on with is to be opened again."""
        return self.clocks.epoch - self.resuming.is_under_way

    def open_epoch(self) -> None:
        run = self.running()
        self.missing.check_before_epoch(run)
        self.resuming.enter_epoch()
        self.clocks.epoch = self.epochs_opened + 1
        self.passes_opened = 0
        self.saving.passes_done = []
        self.epoch_is_open, self.cut_short, self.epochs_abandoned = True, False, False
        run.epoch_complete = False
        run._verdicts.begin_epoch()
        self.hooks.fire("on_epoch_begin", run)
        self.agree_now("the beginning of the epoch")

    def close_open_epoch(self, *, cut_short: bool) -> None:
        """Close the epoch, and the passes in it, if one is open."""
        self.close_passes()
        if self.epoch_is_open:
            self.cut_short |= cut_short
            self.close_epoch()

    def close_epoch(self) -> None:
        run = self.running()
        self.resuming.refuse_if_lost()
        self.epoch_is_open = self.epochs_abandoned = False
        run.epoch_complete = not self.cut_short
        self.clocks.epochs_done = self.clocks.epoch
        try:
            self.hooks.fire("on_epoch_end", run)
        finally:
            self.leaving.leave(None)
        self.agree_now("the end of the epoch")
        self.logbook.flush()
        run.put_event("epoch_end", complete=run.epoch_complete)  # tells monitors that they have every value of the epoch
        run.monitors.raise_errors()
        for line in self.share.heavy(self.hooks.costs(of_users=True)):
            logger.warning("%s", line)
        self.saving.at_epoch_end()
