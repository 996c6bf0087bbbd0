"""ThroughputTracker: steps and samples per second."""

from __future__ import annotations

from typing import Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks.progress._lap_timer import LapTimer
from hookpoint.core.callback.callback import Options
from hookpoint.core.run.run import Run


class ThroughputTracker(LapTimer):
    """Log the steps and samples per second since the last trigger.

    The metrics have the same names as in tensorpack. Only this rank's samples count; `samples_per_step` overrides the count.
    Only training time counts: validation, checkpoints and callbacks between epochs are left out. Nothing is logged if there was
    no step. If a validation pass failed, the training time is unknown, and nothing is logged either. In a resumed run, the
    first value also includes the training between the last trigger and the checkpoint. If the resumed run has to read earlier
    batches again, that time counts too.

    >>> ThroughputTracker(samples_per_step=256).when(Every(steps=1000)).schedule
    Every(steps=1000)
    """

    may_write = ("Throughput (steps/sec)", "Throughput (samples/sec)")

    def __init__(self, samples_per_step: int | None = None, **options: Unpack[Options]) -> None:
        super().__init__("since", **options)
        given = samples_per_step
        self.samples_per_step = None if given is None else integer("ThroughputTracker", "samples_per_step", given, least=1)
        self._is_unknown = False

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._is_unknown = False

    def on_train_epoch_end(self, run: Run) -> None:
        super().on_train_epoch_end(run)
        self._is_unknown |= self.time.is_unknown

    def on_trigger(self, run: Run) -> None:
        lap = self.elapsed("since")
        self.start("since")
        is_unknown, self._is_unknown = self._is_unknown or self.time.is_unknown, False
        if not is_unknown and lap.steps and lap.seconds > 0:
            samples = lap.samples if self.samples_per_step is None else lap.steps * self.samples_per_step
            run.put_scalar("Throughput (steps/sec)", lap.steps / lap.seconds)
            run.put_scalar("Throughput (samples/sec)", samples / lap.seconds)
