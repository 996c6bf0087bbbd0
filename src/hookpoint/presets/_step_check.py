"""Check that a loop steps its optimizer and its learning rate scheduler."""

from __future__ import annotations

from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run


class StepCheck(Callback):
    """Warn at the end of the first training epoch if the loop has not stepped its optimizer or all of its schedulers.

    A Runner steps them, but your own loop must do this itself. Of several optimizers, only the first is checked. Schedulers
    count their steps in `last_epoch`.
    """

    is_internal = True
    _before: list[Any] | None = None
    _has_warned = False

    def on_run_begin(self, run: Run) -> None:
        self._before, self._has_warned = _counts(run), False

    def on_epoch_end(self, run: Run) -> None:
        if self._before is None or not run.epoch_complete or not run.iteration:
            return
        if not run.step:
            if not self._has_warned and run.is_chief:
                which, cure = "the optimizer", "Unless its first step comes later, call optimizer.step() in the loop"
                if len(run.optimizers) > 1:
                    which, cure = "the first optimizer", "run.step counts only its steps: list an optimizer that steps first"
                logger.warning("%s was not stepped in epoch %d, so run.step is still 0. %s", which, run.epoch, cure)
            self._has_warned = True
            return
        if any(before is not None and before == now for before, now in zip(self._before, _counts(run), strict=True)):
            message = "the lr_scheduler was not stepped in epoch %d: call run.adjust_lr() or scheduler.step() in the loop"
            logger.warning(message, run.epoch)
        self._before = None


def _counts(run: Run) -> list[Any]:
    return [getattr(scheduler, "last_epoch", None) for scheduler in run.schedulers]
