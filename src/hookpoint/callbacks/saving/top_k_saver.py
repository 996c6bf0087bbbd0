"""TopKSaver: keep the checkpoints with the best values of a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.saver import Saver, is_claimed, is_in_training, measured, named
from hookpoint.callbacks._shared.unseen_values import NewValues
from hookpoint.callbacks.saving._top_k import TopK
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.log.best import Best, mode_of
from hookpoint.storage.workdir.retention import KeepNewest

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run


class TopKSaver(Saver):
    """Save whenever a metric is among its `k` best values so far, and delete what is no longer among them.

    The checkpoints have the tag `top-<metric>`; `filename` replaces the metric in it. `mode` is "min", "max", or "auto", which
    goes by the metric's name. Of equal values the earlier stays; NaN is never among the best. A missing metric is an
    error. It counts at the moment it was measured at, as for MinSaver. The best of them all is `checkpoints/best-<metric>/`
    too, unless another saver keeps that folder; each manifest has the value that its checkpoint was saved for.

    Triggered at the end of each complete epoch, after those that write the metric. Reads `monitor_stat`, sends the event "top"
    with metric, value and place. Keeps the ranking in the checkpoint. Runs on all ranks. Costs a few comparisons per trigger,
    and a checkpoint for a value among the best.

    With a step schedule it looks at the mean of what was logged since it last looked; a
    step that logs the metric pays for an addition then.

    >>> saver = TopKSaver("val_accuracy", k=5, mode="max")
    >>> saver.name, saver.tag
    ('TopKSaver(val_accuracy)', 'top-val_accuracy')
    """

    reads_windows = True

    def __init__(
        self, monitor_stat: str, k: int = 3, mode: str = "min", filename: str | None = None, **options: Unpack[Options]
    ) -> None:
        self.monitor_stat = named("TopKSaver", "monitor_stat", monitor_stat)
        self.tag = f"top-{monitor_stat if filename is None else named('TopKSaver', 'filename', filename)}"
        self.top = TopK(k, mode_of(monitor_stat, mode))
        super().__init__({self.tag: self.top}, **options)
        self.reads = (monitor_stat,)
        set_default_name(self, f"TopKSaver({monitor_stat})")
        self.best_tag = f"best-{self.tag.removeprefix('top-')}"
        self.marks = {self.best_tag: KeepNewest(1)}
        self._keeps_best = True
        self._before = self.top.state_dict()
        self._values = NewValues(monitor_stat)

    @property
    def best(self) -> Best:
        """The best value so far, and its moment."""
        return self.top.best

    def claims(self, tag: str) -> bool:
        return super().claims(tag) or (self._keeps_best and tag == self.best_tag)

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self._keeps_best = False
        self._keeps_best = not is_claimed(run, self.best_tag, besides=self)

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._values.begin(run, self)

    def on_trigger(self, run: Run) -> None:
        self._look(run)

    def on_val_epoch_end(self, run: Run) -> None:
        if is_in_training(run):  # whatever the schedule: later, the weights that were measured are gone
            self._look(run, final_only=True)

    def _look(self, run: Run, *, final_only: bool = False) -> None:
        if self.was_lost(run, self.tag):
            self.top.load_state_dict(self._before)
        found, before = self._values.take_current(run, final_only=final_only), self.top.state_dict()
        if found is None or not self.top.take(found[1], found[0]):
            return
        moment, value = found
        self._before = before
        place = self.top.place(moment)
        run.put_event("top", metric=self.monitor_stat, value=value, place=place)
        saved_for = measured(self.monitor_stat, self.top.mode, value, moment)
        self.ask(run, self.tag, measured=saved_for)
        if place == 1 and self._keeps_best:
            run.save(self.best_tag, keep=self.marks[self.best_tag], measured=saved_for)

    def reset(self) -> None:
        super().reset()
        self.top.reset()
        self._values.reset()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self.top.state_dict(), **self._values.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.top.load_state_dict(state)
        self._values.load_state_dict(state)
