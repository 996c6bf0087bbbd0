"""BestTracker: the values of a metric that are worth a checkpoint."""

from __future__ import annotations

import logging
from typing import Any

from hookpoint.callbacks._shared.saver import Saver, measured
from hookpoint.callbacks._shared.unseen_values import NewValues
from hookpoint.callbacks.saving._top_k import TopK
from hookpoint.core.callback.callback import Callback
from hookpoint.core.log.best import Best
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment

logger = logging.getLogger("hookpoint")


class BestTracker:
    """Watch a metric for a saver and rank its values, with Best or TopK. `tag` is the tag of the checkpoints."""

    def __init__(self, metric: str, ranking: Best | TopK, tag: str) -> None:
        self.metric, self.ranking, self.tag = metric, ranking, tag
        self._previous = ranking.state_dict()
        self._values = NewValues(metric)

    def reset(self) -> None:
        """Start from scratch, for a fresh run."""
        self.ranking.reset()
        self._previous = self.ranking.state_dict()
        self._values.reset()

    def begin(self, run: Run, owner: Callback) -> None:
        """Attach to the metric when the run begins."""
        self._values.begin(run, owner)

    def take(self, saver: Saver, run: Run, *, final_only: bool = False) -> tuple[Moment, float] | None:
        """Return the newest value and its moment if the ranking accepts it.

        If the checkpoint of the last accepted value was not written, the ranking is restored first.
        """
        if saver.was_lost(run, self.tag):
            self.ranking.load_state_dict(self._previous)
        new, before = self._values.take_current(run, final_only=final_only), self.ranking.state_dict()
        if new is None or not self.ranking.take(new[1], new[0]):
            return None
        self._previous = before
        return new

    def save_best(self, saver: Saver, run: Run, *, final_only: bool = False, in_background: bool = False) -> None:
        """Save if the newest value is the best so far; send the event "best" and log a line."""
        if (new := self.take(saver, run, final_only=final_only)) is not None:
            previous, value = self._previous["value"], new[1]
            was = "" if previous is None else f", after {previous:g}"
            logger.info("%s is %g at step %d, the best so far%s", self.metric, value, run.step, was)
            run.put_event("best", metric=self.metric, value=value, previous=previous)
            saved_for = measured(self.metric, self.ranking.mode, value, new[0])
            saver.ask(run, self.tag, in_background=in_background, measured=saved_for)

    def state_dict(self) -> dict[str, Any]:
        return {**self.ranking.state_dict(), **self._values.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ranking.load_state_dict(state)
        self._values.load_state_dict(state)
