"""LapTimer: the base class of callbacks that measure the speed of training."""

from __future__ import annotations

import sys
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks.progress._training_time import Elapsed, TrainingTime
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.run.run import Run


class LapTimer(Callback):
    """Measure named laps of training time; derived classes decide when a lap starts.

    Validation, prediction, the time between passes and checkpoints are left out; of a background checkpoint, the time that
    training waits for it is not. A GPU works asynchronously: the timer waits for it when a training pass ends or pauses and
    when a checkpoint is written, so that its work counts in the right lap. The checkpoint stores the laps so far. A resumed lap
    continues from there, and the time to resume counts only if data had to be read again.
    """

    ranks = "chief"
    keeps: ClassVar[str] = "the training time, steps and samples of the current lap"

    def __init__(self, *laps: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.time = TrainingTime()
        self._starts = dict.fromkeys(laps, Elapsed())  # a lap is the work since its start
        self._end = Elapsed()  # of the last run
        self._saving: tuple[int, float] | None = None

    def on_run_begin(self, run: Run) -> None:
        laps = {name: self.elapsed(name) if run.resuming else Elapsed() for name in self._starts}
        self._run = run
        self._saving = None
        self._starts = {name: self.now().since(lap) for name, lap in laps.items()}

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
        if self._saving is not None and self._saving[0] == run.iteration:  # otherwise it was written in the background
            self.time.take_off(self.time.seconds - self._saving[1])
        self._saving = None

    def on_run_end(self) -> None:
        self.time.end()
        self._end = self.now()
        self._run = None

    def now(self) -> Elapsed:
        """Return the work done in this run so far."""
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
            self._saving = (self._run.iteration, self.time.seconds)  # this call means that a checkpoint is being written
        laps = {name: self.elapsed(name) for name in self._starts}
        return {unit: {name: getattr(lap, unit) for name, lap in laps.items()} for unit in Elapsed._fields}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._starts:
            if name in state["seconds"]:
                self._starts[name] = self.now().since(Elapsed(*(state[unit][name] for unit in Elapsed._fields)))


def wait_for(device: Any) -> None:
    """Wait until a GPU in use has finished its work: this device, or the current one of this thread."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_initialized():
        with torch.cuda.device(device if getattr(device, "type", None) == "cuda" else None):
            event = torch.cuda.Event()
            event.record()
            event.synchronize()  # not torch.cuda.synchronize, which raises in runs that check for syncs
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
