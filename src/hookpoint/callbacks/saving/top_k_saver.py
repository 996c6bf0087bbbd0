"""TopKSaver: keep the checkpoints with the best values of a metric."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks._shared.saver import is_claimed, measured
from hookpoint.callbacks.saving._metric_saver import MetricSaver
from hookpoint.callbacks.saving._top_k import TopK
from hookpoint.core.callback.callback import Options
from hookpoint.core.callback.knob import Knob
from hookpoint.core.log.best import mode_of
from hookpoint.core.run.run import Run
from hookpoint.storage.retention import KeepNewest


class TopKSaver(MetricSaver):
    """Save whenever a metric reaches one of its `k` best values so far, and delete checkpoints that drop out of the top k.

    The checkpoints have the tag `top-<metric>`; `filename` replaces the metric in the tag. `mode` is "min", "max", or "auto",
    which infers it from the metric's name. If two values tie, the earlier one is kept; NaN is never ranked. Raises if the
    metric is missing. TopKSaver saves under the same conditions as MinSaver. `async_save` works as in ModelSaver. The best
    checkpoint is also available as `checkpoints/best-<metric>/`, unless another saver owns that folder. The manifest of each
    checkpoint contains the metric's value.

    Reads `monitor_stat` after the callbacks that write this metric have run. Sends the event "top" with the fields `metric`,
    `value` and `place`. With a step schedule, the value is the mean of the values logged since the last trigger.

    >>> saver = TopKSaver("val_accuracy", k=5, mode="max")
    >>> saver.name, saver.tag
    ('TopKSaver(val_accuracy)', 'top-val_accuracy')
    """

    knobs = (Knob("k", int, low=1, about="checkpoints to keep; applies from the next ranked value on"),)
    keeps: ClassVar[str] = "the ranking, and when the last checkpoint was saved"

    def __init__(
        self,
        monitor_stat: str,
        k: int = 3,
        mode: str = "min",
        filename: str | None = None,
        *,
        async_save: bool = True,
        **options: Unpack[Options],
    ) -> None:
        self.top = TopK(k, mode_of(str(monitor_stat), mode))
        super().__init__("top", monitor_stat, self.top, filename, async_save=async_save, **options)
        self.best_tag = f"best-{self.tag.removeprefix('top-')}"
        self.marks = {self.best_tag: KeepNewest(1)}
        self._saves_best = True

    @property
    def k(self) -> int:
        """The number of checkpoints to keep."""
        return self.top.k

    @k.setter
    def k(self, number: int) -> None:
        self.top.k = integer("TopKSaver", "k", number, least=1)

    def claims(self, tag: str) -> bool:
        return super().claims(tag) or (self._saves_best and tag == self.best_tag)

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self._saves_best = not is_claimed(run, self.best_tag, besides=self)

    def save_best(self, run: Run, *, final_only: bool = False) -> None:
        if (new := self.take_best(run, final_only=final_only)) is None:
            return
        moment, value = new
        place = self.top.place(moment)
        run.put_event("top", metric=self.monitor_stat, value=value, place=place)
        saved_for = measured(self.monitor_stat, self.top.mode, value, moment)
        self.request(run, self.tag, measured=saved_for)
        if place == 1 and self._saves_best:
            run.save(self.best_tag, keep=self.marks[self.best_tag], in_background=self.async_save, measured=saved_for)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        ranking = state.pop("best")
        return {**state, **ranking}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "best": state})
