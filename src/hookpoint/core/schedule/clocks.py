"""The counters of a run. They are plain attributes, so that a schedule can read them in a few nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from hookpoint.core.schedule.moment import Moment

COUNTERS = ("epoch", "epochs_done", "step", "iteration", "samples", "commands")


class Clocks:
    """The position of a run. Only training advances the counters.

    `epoch` is the current epoch, counted from 1. The other counters count finished epochs, steps, iterations and samples.
    `elapsed` is the training time in seconds, which a resumed run continues to count. It does not advance before `start`, after
    `stop` or during a pause. `commands` is the journal number of the last command that the run applied.
    """

    __slots__ = (*COUNTERS, "_elapsed", "_paused", "_paused_at", "_started")

    def __init__(self) -> None:
        self.epoch = self.epochs_done = self.step = self.iteration = self.samples = self.commands = 0
        self._elapsed = self._paused = 0.0
        self._started: float | None = None
        self._paused_at: float | None = None

    @property
    def moment(self) -> Moment:
        """The current epoch, iteration and step of the run, as a Moment."""
        return Moment(self.epoch, self.iteration, self.step)

    def count_step(self) -> None:
        """Count an optimizer step. Only the code that performs or observes a step calls this."""
        self.step += 1

    def elapsed(self) -> float:
        if self._started is None:
            return self._elapsed
        return self._elapsed + perf_counter() - self._started

    def start(self) -> None:
        if self._started is None:
            self._started = perf_counter()

    def stop(self) -> None:
        self._elapsed, self._started = Clocks.elapsed(self), None  # in a team, this is the time on this rank

    @property
    def is_paused(self) -> bool:
        return self._paused_at is not None

    def pause(self) -> None:
        if self._paused_at is None:
            self.stop()
            self._paused_at = perf_counter()

    def resume(self) -> None:
        """Continue after a pause."""
        self._paused, self._paused_at = self.paused_seconds(), None
        self.start()

    def paused_seconds(self) -> float:
        """Return how long the run has been paused since it started, including the current pause."""
        since = self._paused_at  # read only once, because the run may resume while another thread calls this method
        return self._paused if since is None else self._paused + perf_counter() - since

    def state_dict(self) -> dict[str, float]:
        return {**{name: getattr(self, name) for name in COUNTERS}, "elapsed": self.elapsed()}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        for name in COUNTERS:
            setattr(self, name, int(state.get(name, 0)))  # older checkpoints lack some counters
        self._elapsed = float(state["elapsed"])
        if self._started is not None:
            self._started = perf_counter()
