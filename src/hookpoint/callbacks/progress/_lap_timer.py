"""LapTimer: the base class of callbacks that measure the speed of training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Unpack

from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run

UNITS = ("seconds", "steps", "samples")


class LapTimer(Callback):
    """Measure named laps of training time. Subclasses decide when a lap starts.

    Validation, prediction, checkpoints, pauses and the time between passes do not count. Time that training spends waiting for
    a background checkpoint does count. A GPU works asynchronously, so the timer waits for it when a training pass ends or
    pauses and when a checkpoint is written. The GPU's work therefore counts towards the right lap. The checkpoint stores the
    laps so far, and a resumed lap continues from there. If a resumed run has to read earlier batches again, that time counts.
    Other time spent on resuming does not count.
    """

    ranks = "chief"
    keeps: ClassVar[str] = "the training time, steps and samples of the current lap"
    step_cost: ClassVar[str] = "nothing; it waits for the GPU when a training pass ends or pauses and at checkpoints"

    def __init__(self, *laps: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.time = TrainingTime()
        self._starts = dict.fromkeys(laps, Elapsed())  # for each lap, the training time, steps and samples at its start
        self._end = Elapsed()  # the training time, steps and samples at the end of the last run
        self._saving: tuple[int, float] | None = None

    def on_run_begin(self, run: Run) -> None:
        self._run = run
        self._saving = None
        if isinstance(run, Run):
            self.time.paused = machine_of(run).clocks.paused_seconds
        self._starts = dict.fromkeys(self._starts, self.now())

    def on_train_epoch_begin(self, run: Run) -> None:
        self.time.begin()

    def on_val_epoch_begin(self, run: Run) -> None:
        if self.time.is_running:
            wait_for(run.device)
        self.time.pause()

    def on_val_epoch_end(self, run: Run) -> None:
        if self.time.is_paused:
            wait_for(run.device)
        self.time.resume()

    on_pred_epoch_begin, on_pred_epoch_end = on_val_epoch_begin, on_val_epoch_end

    def on_train_epoch_end(self, run: Run) -> None:
        wait_for(run.device)
        self.time.end()

    def on_save(self, run: Run) -> None:
        if self._saving is not None and self._saving[0] == run.iteration:  # the checkpoint is not written in the background
            self.time.subtract(self.time.seconds - self._saving[1])
        self._saving = None

    def on_run_end(self) -> None:
        self.time.end()
        self._end = self.now()
        self.time.paused = no_pause
        self._run = None

    def now(self) -> Elapsed:
        """Return the training time, steps and samples of the current run so far. Between runs, return those of the last run."""
        run = self._run
        return self._end if run is None else Elapsed(self.time.seconds, run.step, run.samples)

    def start(self, lap: str) -> None:
        self._starts[lap] = self.now()

    def elapsed(self, lap: str) -> Elapsed:
        return self.now().since(self._starts[lap])

    def state_dict(self) -> dict[str, Any]:
        if self._run is not None:
            if self.time.is_running:
                wait_for(self._run.device)
            self._saving = (self._run.iteration, self.time.seconds)  # state_dict is called when a checkpoint is being written
        laps = {name: self.elapsed(name) for name in self._starts}
        return {unit: {name: getattr(lap, unit) for name, lap in laps.items()} for unit in UNITS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._starts:
            if name in state["seconds"]:
                self._starts[name] = self.now().since(Elapsed(*(state[unit][name] for unit in UNITS)))


def wait_for(device: Any) -> None:
    """Wait until the given GPU or, by default, this thread's current GPU has finished its work."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "backends"):  # another thread is importing torch
        return
    if torch.cuda.is_initialized():
        with torch.cuda.device(device if getattr(device, "type", None) == "cuda" else None):
            event = torch.cuda.Event()
            event.record()
            event.synchronize()  # torch.cuda.synchronize would raise in CUDA's sync debug mode
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


class TrainingTime:
    """Measure time during training passes, but not between them or during pauses.

    `is_unknown` is set if a pause never ended because a validation pass failed and the loop continued.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self.paused: Callable[[], float] = no_pause  # returns the number of seconds for which commands have paused the run
        self._seconds = 0.0
        self._since: float | None = None
        self.is_paused = False
        self.is_unknown = False

    @property
    def is_running(self) -> bool:
        return self._since is not None

    @property
    def seconds(self) -> float:
        return self._seconds if self._since is None else self._seconds + self._now() - self._since

    def begin(self) -> None:
        """Start the clock at the beginning of a training pass."""
        self._stop()
        self.is_paused = self.is_unknown = False
        self._since = self._now()

    def end(self) -> None:
        """Stop the clock at the end of the pass."""
        self.is_unknown |= self.is_paused
        self.is_paused = False
        self._stop()

    def pause(self) -> None:
        """If the clock is running, stop it until `resume` is called."""
        self.is_unknown |= self.is_paused
        self.is_paused |= self._since is not None
        self._stop()

    def resume(self) -> None:
        """Start the clock again after a pause."""
        if self.is_paused:
            self.is_paused = False
            self._since = self._now()

    def subtract(self, seconds: float) -> None:
        """Subtract time that was not spent on training, if the clock is running."""
        if self._since is not None:
            self._seconds -= seconds

    def _stop(self) -> None:
        self._seconds, self._since = self.seconds, None

    def _now(self) -> float:
        return self.clock() - self.paused()


def no_pause() -> float:
    """Return 0, for runs that cannot be paused."""
    return 0.0


class Elapsed(NamedTuple):
    """A training time in seconds, with the steps and samples processed in that time."""

    seconds: float = 0.0
    steps: int = 0
    samples: int = 0

    def since(self, start: Elapsed) -> Elapsed:
        return Elapsed(self.seconds - start.seconds, self.steps - start.steps, self.samples - start.samples)

    @property
    def seconds_per_step(self) -> float | None:
        return self.seconds / self.steps if self.steps else None
