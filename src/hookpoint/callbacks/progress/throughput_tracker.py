"""ThroughputTracker: steps and samples per second."""

from __future__ import annotations

from typing import Unpack

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.callbacks.progress._lap_timer_callback import Timed
from hookpoint.core.callback.callback import Options
from hookpoint.core.run.run import Run


class ThroughputTracker(Timed):
    """Log how many steps and samples per second were trained since the last time.

    The values are `Throughput (steps/sec)` and `Throughput (samples/sec)`, tensorpack's names. Samples are those that the run
    has counted in the batches of this process; `samples_per_step` says how many there are in a step instead. Training time is
    measured: validation, checkpoints and what callbacks do between epochs are left out. No value is logged where no step was
    made, nor where a validation failed in between and left the time unknown.

    Triggered at the end of each complete epoch; `.when(...)` moves it. Listens to the begin and end of passes, on_save,
    on_run_begin and on_run_end. Keeps in the checkpoint the time, steps and samples since the last time: the first value of a
    resumed run is that of both parts of the epoch, and of the way back only what was read over to find the place in the data
    counts. Runs on the chief. A step pays nothing; a GPU is waited for where a training pass ends, a validation begins or a
    checkpoint is made, and not in between.

    >>> ThroughputTracker(samples_per_step=256).when(Every(steps=1000)).schedule
    Every(steps=1000)
    """

    may_write = ("Throughput (steps/sec)", "Throughput (samples/sec)")

    def __init__(self, samples_per_step: int | None = None, **options: Unpack[Options]) -> None:
        super().__init__("since", **options)
        if samples_per_step is not None:
            whole("ThroughputTracker", "samples_per_step", samples_per_step, least=1)
        self.samples_per_step = samples_per_step
        self._is_unknown = False

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._is_unknown = False

    def on_train_epoch_end(self, run: Run) -> None:
        super().on_train_epoch_end(run)
        self._is_unknown |= self.time.is_unknown

    def on_trigger(self, run: Run) -> None:
        done = self.done("since")
        self.start("since")
        is_unknown, self._is_unknown = self._is_unknown or self.time.is_unknown, False
        if is_unknown or not done.steps or done.seconds <= 0:
            return
        samples = done.samples if self.samples_per_step is None else done.steps * self.samples_per_step
        run.put_scalar("Throughput (steps/sec)", done.steps / done.seconds)
        run.put_scalar("Throughput (samples/sec)", samples / done.seconds)
