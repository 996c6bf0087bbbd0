"""NewValues: each value of a metric that counts for a reader, once."""

from __future__ import annotations

import logging
from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.log.reader_window import ReaderWindow
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.iteration import NO_ITERATION
from hookpoint.core.run.run import Run, now_of
from hookpoint.core.schedule.moment import Moment

logger = logging.getLogger("hookpoint")


class NewValues:
    """Hand out the newest final value of a metric, unless it was handed out before: patience counts observations, not looks.

    Final are the means of finished passes and what is logged between iterations; what a running pass shows is not. A reader
    with a step schedule does not wait for the end of a training pass: it gets the mean of what was logged since it last looked,
    which counts at the moment it is read.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self._window = ReaderWindow()
        self.reset()

    def reset(self) -> None:
        """Forget what was handed out: for a fresh run."""
        self._seen = 0
        self._window.reset()
        self._has_warned = False

    def begin(self, run: Run, owner: Callback) -> None:
        """Find out how the callback reads that these values are for; to be called when its run begins."""
        if any(entry.subject is owner and entry.reads_by_steps for entry in run.hooks.entries):
            machine_of(run).logbook.windows.attach(self.metric, self._window)

    def take(self, run: Run, *, final_only: bool = False) -> tuple[Moment, float] | None:
        """Return the moment at which the newest value was logged, and the value; None where there is no new one.

        A look that is not on the reader's schedule is for final values only: it leaves the window open.
        """
        count = run.metrics.observations(self.metric) - self._window.ignored
        if count == self._seen:
            value = None if final_only else machine_of(run).logbook.read(self._window)
            return None if value is None else (run.moment, value)
        self._seen = count
        return run.metrics.newest(self.metric)

    def take_current(self, run: Run, *, final_only: bool = False) -> tuple[Moment, float] | None:
        """Return the newest value if it is one of the weights as they are now; say once that there was an older one."""
        found = self.take(run, final_only=final_only)
        if found is None:
            return None
        if is_current(found[0], run):
            return found
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "'%s' was measured at %s, and it is %s now: the weights that had it are gone, and not saved."
                " Trigger its saver where it is measured, with .when(...)",
                self.metric,
                *told_apart(found[0], run.moment),
            )
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen, **self._window.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seen = state["seen"]
        self._window.load_state_dict(state)


def is_current(moment: Moment, run: Run) -> bool:
    """Say whether a value of this moment is one of the weights as they are now.

    It is, too, at the end of the iteration it was measured in: a loop may evaluate first and step then.
    """
    now = run.moment
    if moment.is_same(now):
        return True
    is_at_iteration_end = run.mode == "train" and now_of(run) is not NO_ITERATION
    return is_at_iteration_end and moment.epoch == now.epoch and moment.iteration == run.iteration - 1


def told_apart(earlier: Moment, later: Moment) -> tuple[str, str]:
    """Return the names of two moments in words: by their steps, or where these are the same, by what tells them apart."""
    if earlier.step != later.step:
        return f"step {earlier.step}", f"step {later.step}"
    if earlier.epoch != later.epoch:
        return f"epoch {earlier.epoch}", f"epoch {later.epoch}"
    return f"iteration {earlier.iteration}", f"iteration {later.iteration}"
