"""BestWatch: say when a metric is better than ever."""

from __future__ import annotations

import logging
from typing import Any

from hookpoint.callbacks._shared.saver import measured
from hookpoint.callbacks._shared.unseen_values import NewValues
from hookpoint.core.callback.callback import Callback
from hookpoint.core.log.best import Best, Mode
from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")


class BestWatch:
    """Look at a metric for a saver that keeps the best. A new best is an event, "best", and a line in the log."""

    def __init__(self, metric: str, mode: Mode, *, threshold: float | None = None) -> None:
        self.metric = metric
        self.best = Best(mode, threshold=threshold)
        self._before = self.best.state_dict()
        self._values = NewValues(metric)

    def reset(self) -> None:
        """Forget everything: for a fresh run."""
        self.best.reset()
        self._before = self.best.state_dict()
        self._values.reset()

    def begin(self, run: Run, owner: Callback) -> None:
        """Find out how the saver reads that it looks for."""
        self._values.begin(run, owner)

    def take_back(self) -> None:
        """Make what was best before the best again: the last one could not be saved."""
        self.best.load_state_dict(self._before)

    def has_new_best(self, run: Run, *, final_only: bool = False) -> bool:
        """Look at the newest value, once; say whether it is the best so far."""
        found, before = self._values.take_current(run, final_only=final_only), self.best.state_dict()
        if found is None or not self.best.take(found[1], found[0]):
            return False
        self._before, previous, value = before, before["value"], found[1]
        was = "" if previous is None else f", after {previous:g}"
        logger.info("%s is %g at step %d, the best so far%s", self.metric, value, run.step, was)
        run.put_event("best", metric=self.metric, value=value, previous=previous)
        return True

    @property
    def measured(self) -> dict[str, Any]:
        """The best value, as the manifest of its checkpoint has it."""
        assert self.best.value is not None
        assert self.best.moment is not None
        return measured(self.metric, self.best.mode, self.best.value, self.best.moment)

    def state_dict(self) -> dict[str, Any]:
        return {**self.best.state_dict(), **self._values.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state)
        self._values.load_state_dict(state)
