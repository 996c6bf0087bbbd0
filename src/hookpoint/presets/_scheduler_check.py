"""SchedulerCheck: say that nobody steps the lr_scheduler of a user's own loop."""

from __future__ import annotations

import logging
from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")


class SchedulerCheck(Callback):
    """Warn at the end of the first epoch of training if a scheduler stands where it stood before.

    A Runner steps its scheduler; a loop of the user's own has to. Schedulers count their steps in `last_epoch`.
    """

    is_internal = True
    _before: list[Any] | None = None

    def on_run_begin(self, run: Run) -> None:
        self._before = _counts(run)

    def on_epoch_end(self, run: Run) -> None:
        if self._before is None or not run.step or not run.epoch_complete:
            return
        if any(before is not None and before == now for before, now in zip(self._before, _counts(run), strict=True)):
            logger.warning(
                "nobody has stepped the lr_scheduler in epoch %d: call run.adjust_lr() or scheduler.step() in the loop",
                run.epoch,
            )
        self._before = None


def _counts(run: Run) -> list[Any]:
    return [getattr(scheduler, "last_epoch", None) for scheduler in run.schedulers]
