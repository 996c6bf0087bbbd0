"""Timed: what the callbacks that measure the speed of training have in common."""

from __future__ import annotations

import sys
from typing import Any, Unpack

from hookpoint.callbacks.progress._training_time import Done, Lap, TrainingTime
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.run.run import Run


class Timed(Callback):
    """Keep laps of training time by name; derived classes say when one begins and what to make of it.

    Validation, prediction, what comes between passes, and checkpoints are left out; of one that is written in the background
    the part that training waits for is not. A GPU works behind its host: it is waited for where a training pass ends or pauses,
    and where a checkpoint is made, so that its work counts where it belongs. What a lap has so far is in the checkpoint: a
    resumed one goes on from there, and the way back counts only where data had to be read over.
    """

    ranks = "chief"

    def __init__(self, *laps: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.time = TrainingTime()
        self.laps = {name: Lap() for name in laps}
        self._saving: tuple[int, float] | None = None

    def on_run_begin(self, run: Run) -> None:
        self._run = run
        self._saving = None
        for lap in self.laps.values():
            if run.resuming:
                lap.go_on(self.now())
            else:
                lap.begin(self.now())

    def on_train_epoch_begin(self, run: Run) -> None:
        self.time.begin()

    def on_val_epoch_begin(self, run: Run) -> None:
        self._pause(run)

    def on_val_epoch_end(self, run: Run) -> None:
        self._go_on(run)

    def on_pred_epoch_begin(self, run: Run) -> None:
        self._pause(run)

    def on_pred_epoch_end(self, run: Run) -> None:
        self._go_on(run)

    def on_train_epoch_end(self, run: Run) -> None:
        wait_for(run.device)
        self.time.end()

    def on_save(self, run: Run) -> None:
        if self._saving is not None and self._saving[0] == run.iteration:  # or else it was written in the background
            self.time.take_off(self.time.seconds - self._saving[1])
        self._saving = None

    def on_run_end(self) -> None:
        self.time.end()
        for lap in self.laps.values():
            lap.stop(self.now())
        self._run = None

    def now(self) -> Done:
        """Return how much was done up to now, in this run."""
        run = self._run
        return Done(self.time.seconds) if run is None else Done(self.time.seconds, run.step, run.samples)

    def start(self, lap: str) -> None:
        self.laps[lap].begin(self.now())

    def done(self, lap: str) -> Done:
        return self.laps[lap].done(self.now())

    def _pause(self, run: Run) -> None:
        if self.time.is_running:
            wait_for(run.device)
        self.time.pause()

    def _go_on(self, run: Run) -> None:
        if self.time.is_paused:
            wait_for(run.device)
        self.time.go_on()

    def state_dict(self) -> dict[str, Any]:
        if self._run is not None:
            if self.time.is_running:
                wait_for(self._run.device)
            self._saving = (self._run.iteration, self.time.seconds)  # being asked is how to know that one is made
        done = {name: self.done(name) for name in self.laps}
        return {
            "seconds": {name: lap.seconds for name, lap in done.items()},
            "steps": {name: lap.steps for name, lap in done.items()},
            "samples": {name: lap.samples for name, lap in done.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, lap in self.laps.items():
            if name in state["seconds"]:
                kept = Done(state["seconds"][name], state["steps"][name], state["samples"][name])
                lap.go_on(self.now(), kept)
                if self._run is None:
                    lap.stop(self.now())


def wait_for(device: Any) -> None:
    """Wait until a GPU has done what it was given, where one is in use: this one, or that of this thread."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_initialized():
        with torch.cuda.device(device if getattr(device, "type", None) == "cuda" else None):
            done = torch.cuda.Event()
            done.record()
            done.synchronize()  # and not the device, which is refused where a run is watched for waits
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
