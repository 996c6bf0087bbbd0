"""StepValues: what was logged at a step, as one row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookpoint.monitors._epoch_values import EPOCH

if TYPE_CHECKING:
    from hookpoint.core.log.records import Record

STEP = "step"


class StepValues:
    """Gather the scalars of records until the step is another one or the epoch ends: means of log steps, and what goes with it.

    A mean of a whole training pass is left out where log steps have a value of that name: it would be another quantity in the
    same column. A metric that is called "step" or "epoch" gets a `values/` in front.
    """

    def __init__(self) -> None:
        self.gathered: dict[str, float] = {}  # of one step, with its number and its epoch
        self._of_steps: set[str] = set()

    def take(self, record: Record) -> dict[str, float] | None:
        """Take in a record; return the row that it ends, if it ends one."""
        done = None
        if self.gathered and (self.gathered[STEP] != record.step or "epoch_end" in record.values):
            done = self.finish()
        if record.kind == "scalars":
            values = {f"values/{name}" if name in (STEP, EPOCH) else name: one for name, one in record.scalars().items()}
            if record.at == "step":
                self._of_steps.update(values)
            elif record.at == "epoch" and record.mode == "train":
                values = {name: value for name, value in values.items() if name not in self._of_steps}
            if values:
                self.gathered.update({STEP: record.step, EPOCH: record.epoch, **values})
        return done

    def finish(self) -> dict[str, float]:
        """Return the row so far, empty where there is none, and begin another."""
        gathered, self.gathered = self.gathered, {}
        return gathered
