"""EpochValues and StepValues: gather scalars into one row per epoch or per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookpoint.core.log.records import Record
from hookpoint.core.run.run import Run

EPOCH, STEP = "epoch", "step"


class EpochValues:
    """Gather the scalars of an epoch: the means over its passes, and the values that are logged between passes.

    The means at log steps are left out. If a metric is logged more than once, the last value counts. A metric called
    "epoch" becomes "values/epoch".
    """

    keys: tuple[str, ...] = (EPOCH,)

    def __init__(self, epochs_done: int = 0) -> None:
        self.gathered: dict[str, float] = {}
        self._ended = epochs_done  # the last epoch that has ended
        self._restored_after: int | None = None  # the epoch after which the restored values were logged, if it is complete

    def take_restored(self, record: Record, run: Run) -> dict[str, float] | None:
        """If a resumed run begins another epoch with this record, return the row of values restored from after the last epoch.

        Call this before `take`, so that these values do not become values of the new epoch. In a loop without `run.epochs`, the
        values between two training passes always belong to the next epoch, so this returns None.
        """
        epoch = self._restored_after
        if epoch is None or record.epoch == epoch:
            return None
        self._restored_after = None
        return {EPOCH: epoch, **self.finish()} if self.gathered and run.max_epochs is not None else None

    def take(self, record: Record) -> dict[str, float] | None:
        """Add a record. If it ends an epoch, return the row for that epoch. The row contains the epoch number."""
        if record.kind == "scalars" and record.at != "step":
            self.gathered.update(self.named(record.scalars()))
        elif record.kind == "event" and "epoch_end" in record.values:
            self._ended = record.epoch
            return {EPOCH: record.epoch, **self.finish()}
        return None

    def finish(self) -> dict[str, float]:
        """Return the current row, which may be empty, and start a new one."""
        gathered, self.gathered = self.gathered, {}
        return gathered

    def last(self, run: Run) -> dict[str, float] | None:
        """At the end of the run, return a row with the values that were logged after the last epoch, or None."""
        return {EPOCH: run.epoch, **self.finish()} if self.gathered and not self.is_in_epoch(run) else None

    def is_in_epoch(self, run: Run) -> bool:
        """Return whether the current epoch has not ended. At the end of a run, this means that an exception interrupted it."""
        return self._ended < run.epoch

    def named(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """Return the scalars. A scalar with the same name as a key column is renamed."""
        return {f"values/{name}" if name in self.keys else name: value for name, value in scalars.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a monitor saves, so that a resumed run completes the current row."""
        return {"gathered": dict(self.gathered)}

    def load_state_dict(self, state: Mapping[str, Any], run: Run | None = None) -> None:
        """Restore the state that `state_dict` returned. An empty state is an empty row."""
        self.gathered = dict(state.get("gathered", {}))
        self._restored_after = None if run is None or self.is_in_epoch(run) else run.epoch


class StepValues(EpochValues):
    """Gather the scalars of a step: the means at a log step, and everything else that is logged at the same step.

    The mean over a training pass is left out if log steps have a value with that name, because the two are different
    quantities. Metrics called "step" or "epoch" become "values/step" and "values/epoch".
    """

    keys = (STEP, EPOCH)

    def __init__(self, epochs_done: int = 0) -> None:
        super().__init__(epochs_done)
        self._step_means: set[str] = set()

    def take(self, record: Record) -> dict[str, float] | None:
        """Add a record. If it ends a row, because the step changes or the epoch ends, return that row."""
        is_end = self.gathered and (self.gathered[STEP] != record.step or "epoch_end" in record.values)
        row = self.finish() if is_end else None
        if record.kind == "scalars":
            values = self.named(record.scalars())
            if record.at == "step":
                self._step_means.update(values)
            elif record.at == "epoch" and record.mode == "train":
                values = {name: value for name, value in values.items() if name not in self._step_means}
            if values:
                self.gathered.update({STEP: record.step, EPOCH: record.epoch, **values})
        return row

    def last(self, run: Run) -> dict[str, float] | None:
        return self.finish()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "step_means": sorted(self._step_means)}

    def load_state_dict(self, state: Mapping[str, Any], run: Run | None = None) -> None:
        super().load_state_dict(state, run)
        self._step_means = set(state.get("step_means", ()))  # missing in older checkpoints
