"""TopKSaver: keep the checkpoints with the best values of a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint.callbacks.best import mode_of
from hookpoint.callbacks.new_values import NewValues
from hookpoint.callbacks.saver import Saver, named
from hookpoint.callbacks.top_k import TopK
from hookpoint.storage.retention import KeepNamed

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback import Options
    from hookpoint.core.run import Run


class TopKSaver(Saver):
    """Save whenever a metric is among its `k` best values so far, and delete what is no longer among them.

    The checkpoints have the tag `top-<metric>`; `filename` replaces the metric in it. `mode` is "min", "max", or "auto", which
    goes by the metric's name. Of equal values the earlier stays; NaN is never among the best. A missing metric is an
    error. It counts at the step it was measured at, as for MinSaver.

    Triggered at the end of each complete epoch, after those that write the metric. Reads `monitor_stat`, sends the event "top"
    with metric, value and place. Keeps the ranking in the checkpoint. Runs on all ranks. Costs a few comparisons per trigger,
    and a checkpoint for a value among the best.

    >>> saver = TopKSaver("val_accuracy", k=5, mode="max")
    >>> saver.name, saver.tag
    ('TopKSaver(val_accuracy)', 'top-val_accuracy')
    """

    def __init__(
        self, monitor_stat: str, k: int = 3, mode: str = "min", filename: str | None = None, **options: Unpack[Options]
    ) -> None:
        self.monitor_stat = named("TopKSaver", "monitor_stat", monitor_stat)
        self.tag = f"top-{monitor_stat if filename is None else named('TopKSaver', 'filename', filename)}"
        self.top = TopK(k, mode_of(monitor_stat, mode))
        super().__init__({self.tag: KeepNamed(self.top)}, **options)
        self.reads = (monitor_stat,)
        self.name = self.name or f"TopKSaver({monitor_stat})"
        self._before = self.top.state_dict()
        self._values = NewValues(monitor_stat)

    def on_trigger(self, run: Run) -> None:
        if self.was_lost(run, self.tag):
            self.top.load_state_dict(self._before)
        value, before = self._values.take_current(run), self.top.state_dict()
        if value is not None and self.top.take(value, run.step):
            self._before = before
            place = [step for _, step in self.top.ranking].index(run.step) + 1
            run.put_event("top", metric=self.monitor_stat, value=value, place=place)
            self.ask(run, self.tag)

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
