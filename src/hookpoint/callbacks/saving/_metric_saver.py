"""MetricSaver: the base class of MinSaver, MaxSaver and TopKSaver."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.saver import Saver, is_in_training, named
from hookpoint.callbacks.saving._best_tracker import BestTracker
from hookpoint.callbacks.saving._top_k import TopK
from hookpoint.core.callback.callback import Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.checkpoint.store import Keep
from hookpoint.core.log.best import Best
from hookpoint.core.run.run import Run
from hookpoint.storage.workdir.retention import KeepNewest


class MetricSaver(Saver):
    """Request a checkpoint whenever a metric reaches a new best; the tag is `<prefix>-<metric or filename>`.

    A validation inside a training iteration is handled at once, whatever the schedule: later, the measured weights are gone.
    """

    reads_windows = True
    keeps: ClassVar[str] = "the best value, and the moments of the best value and of the last save"
    step_cost: ClassVar[str] = (
        "nothing; one comparison per trigger and a checkpoint per new best;"
        " with a step schedule, one addition per step that logs the metric"
    )

    def __init__(
        self, prefix: str, monitor_stat: str, ranking: Best | TopK, filename: str | None, **options: Unpack[Options]
    ) -> None:
        owner = type(self).__name__
        self.monitor_stat = named(owner, "monitor_stat", monitor_stat)
        self.tag = f"{prefix}-{monitor_stat if filename is None else named(owner, 'filename', filename)}"
        keep: Keep = ranking if isinstance(ranking, TopK) else KeepNewest(1)
        super().__init__({self.tag: keep}, **options)
        self.reads = (monitor_stat,)
        set_default_name(self, f"{owner}({monitor_stat})")
        self._tracker = BestTracker(monitor_stat, ranking, self.tag)

    @property
    def best(self) -> Best:
        """The best value so far, and its step and moment."""
        ranking = self._tracker.ranking
        return ranking.best if isinstance(ranking, TopK) else ranking

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._tracker.begin(run, self)

    def on_trigger(self, run: Run) -> None:
        self._save_best(run)

    def on_val_epoch_end(self, run: Run) -> None:
        if is_in_training(run):
            self._save_best(run, final_only=True)

    def _save_best(self, run: Run, *, final_only: bool = False) -> None:
        self._tracker.save_best(self, run, final_only=final_only)

    def reset(self) -> None:
        super().reset()
        self._tracker.reset()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "best": self._tracker.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._tracker.load_state_dict(state.get("best", state))
