"""NewValues: the newest final value of a metric, returned only once."""

from __future__ import annotations

from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.log.reader_windows import ReaderWindow
from hookpoint.core.logger import logger
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.iteration import NO_ITERATION
from hookpoint.core.run.run import Run, now_of
from hookpoint.core.schedule.moment import Moment


class NewValues:
    """Return the newest final value of a metric, but only once.

    A callback that counts values, such as EarlyStopping with its patience, must not count the same value twice when it is
    triggered twice. Final values are the means of finished passes and values logged between iterations. A callback with a
    step schedule does not wait for the end of a training pass: it gets the mean of the values logged since its last read.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self._window = ReaderWindow()
        self.reset()

    def reset(self) -> None:
        """Reset the state for a fresh run."""
        self._seen = 0
        self._window.reset()
        self._has_warned = False

    def begin(self, run: Run, owner: Callback) -> None:
        """If the callback `owner` has a step schedule, start collecting values for its reads. Call this when the run begins."""
        if any(entry.subject is owner and entry.reads_by_steps for entry in run.hooks.entries):
            machine_of(run).logbook.windows.attach(self.metric, self._window)

    def take(self, run: Run, *, final_only: bool = False) -> tuple[Moment, float] | None:
        """Return the newest value and the moment it was logged, or None if there is no new value.

        Pass `final_only` to read outside the schedule. Such a read returns only final values. It does not affect the mean that
        the next scheduled read returns.
        """
        count = run.metrics.observations(self.metric) - self._window.ignored
        if count == self._seen:
            value = None if final_only else machine_of(run).logbook.read(self._window)
            return None if value is None else (run.moment, value)
        self._seen = count
        return run.metrics.newest(self.metric)

    def take_current(self, run: Run, *, final_only: bool = False) -> tuple[Moment, float] | None:
        """Return the newest value if it was measured with the current weights; otherwise warn once."""
        new = self.take(run, final_only=final_only)
        if new is None or is_current(new[0], run):
            return new
        if not self._has_warned:
            self._has_warned = True
            warn_outdated(self.metric, new[0], run, "the measured weights no longer exist and cannot be saved")
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen, **self._window.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seen = state["seen"]
        self._window.load_state_dict(state)


def is_current(moment: Moment, run: Run) -> bool:
    """Return whether a value logged at this moment was measured with the current weights.

    At the end of a training iteration, a value from earlier in the same iteration still counts, because a loop may evaluate
    before it steps the optimizer.
    """
    now = run.moment
    if moment.is_same(now):
        return True
    is_at_iteration_end = run.mode == "train" and now_of(run) is not NO_ITERATION
    return is_at_iteration_end and moment.epoch == now.epoch and moment.iteration == run.iteration - 1


def warn_outdated(metric: str, measured: Moment, run: Run, consequence: str) -> None:
    """Warn that a metric was not measured with the current weights.

    The message shows when the metric was measured and where the run is now: by step or, if the step is the same, by epoch or
    iteration.
    """
    now = run.moment
    clock = next((name for name in ("step", "epoch") if getattr(measured, name) != getattr(now, name)), "iteration")
    then, later = getattr(measured, clock), getattr(now, clock)
    line = "'%s' was measured at %s %s, but the run is at %s %s: %s. Use .when(...) to run the callback after each measurement"
    logger.warning(line, metric, clock, then, clock, later, consequence)
