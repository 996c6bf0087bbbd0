"""MetricSaver: the base class of MinSaver, MaxSaver and TopKSaver, and the code it shares with ModelCheckpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import string
from hookpoint.callbacks._shared.new_values import NewValues
from hookpoint.callbacks._shared.saver import Saver, SaverOptions, is_in_training, measured
from hookpoint.callbacks.saving._top_k import TopK
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.checkpoint.store import Keep
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.best import Best, clear_mode_of
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment
from hookpoint.storage.retention import KeepNewest


class TrackingSaver(Saver):
    """Rank a metric's values with Best or TopK, and request a checkpoint for each new best value.

    `tag` is the tag of these checkpoints. Without a metric, nothing is tracked. The result of a validation pass inside a
    training iteration is handled immediately, regardless of the schedule, because the next step changes the weights.
    """

    reads_windows = True
    keeps: ClassVar[str] = "the best value, when it was logged, and when the last checkpoint was saved"
    step_cost: ClassVar[str] = "nothing; with a step schedule, one addition per step that logs the metric"

    def __init__(
        self, rules: Mapping[str, Keep], metric: str | None, ranking: Best | TopK, tag: str, **options: Unpack[SaverOptions]
    ) -> None:
        super().__init__(rules, **options)
        if metric is not None:
            self.reads = (metric,)
        self._metric, self._ranking, self._best_tag = metric, ranking, tag
        self._previous = ranking.state_dict()
        self._values = NewValues(metric or "")

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        if self._metric is not None:
            self._values.begin(run, self)

    def on_val_epoch_end(self, run: Run) -> None:
        if is_in_training(run):
            self.take_results(run)

    def take_results(self, run: Run) -> None:
        self.save_best(run, final_only=True)

    def take_best(self, run: Run, *, final_only: bool) -> tuple[Moment, float] | None:
        """Add the newest value to the ranking. If it is among the best, return the moment it was logged and the value.

        If the checkpoint for the previous best value was not written, that value is removed from the ranking first.
        """
        if self._metric is None:
            return None
        if self.was_lost(run, self._best_tag):
            self._ranking.load_state_dict(self._previous)
        new, before = self._values.take_current(run, final_only=final_only), self._ranking.state_dict()
        if new is None or not self._ranking.take(new[1], new[0]):
            return None
        self._previous = before
        return new

    def save_best(self, run: Run, *, final_only: bool = False) -> None:
        """If the newest value is the best so far, request a checkpoint, send the event "best" and log a line."""
        if self._metric is not None and (new := self.take_best(run, final_only=final_only)) is not None:
            previous, value = self._previous["value"], new[1]
            was = "" if previous is None else f" (previously {previous:g})"
            logger.info("%s is %g at step %d, the best so far%s", self._metric, value, run.step, was)
            run.put_event("best", metric=self._metric, value=value, previous=previous)
            saved_for = measured(self._metric, self._ranking.mode, value, new[0])
            self.request(run, self._best_tag, measured=saved_for)

    def reset(self) -> None:
        super().reset()
        self._ranking.reset()
        self._previous = self._ranking.state_dict()
        self._values.reset()

    def state_dict(self) -> dict[str, Any]:
        best = None if self._metric is None else {**self._ranking.state_dict(), **self._values.state_dict()}
        return {**super().state_dict(), "best": best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        best = state.get("best", state)
        if self._metric is not None and best is not None:
            self._ranking.load_state_dict(best)
            self._values.load_state_dict(best)


class MetricSaver(TrackingSaver):
    """When triggered, save a checkpoint if the metric has a new best value. The tag is `<prefix>-<metric or filename>`.

    Without a schedule, the saver also checks the metric at the end of epochs that are cut short with `break`.
    """

    def __init__(
        self, prefix: str, monitor_stat: str, ranking: Best | TopK, filename: str | None, **options: Unpack[SaverOptions]
    ) -> None:
        owner = type(self).__name__
        self.monitor_stat = string(owner, "monitor_stat", monitor_stat)
        if filename is not None and any(brace in string(owner, "filename", filename) for brace in "{}"):
            raise BadArgument(
                f"{owner}: filename must be a name without braces, got {filename!r}: it is not a template.",
                write=f"ModelCheckpoint(monitor={monitor_stat!r}, save_best_only=True, filename={filename!r})",
            )
        self.tag = f"{prefix}-{monitor_stat if filename is None else filename}"
        keep: Keep = ranking if isinstance(ranking, TopK) else KeepNewest(1)
        super().__init__({self.tag: keep}, monitor_stat, ranking, self.tag, **options)
        set_default_name(self, f"{owner}({monitor_stat})")

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        metric, better = self.monitor_stat, clear_mode_of(self.monitor_stat)
        if run.is_chief and better not in (None, self._ranking.mode):
            kept, lost = ("lowest", "highest") if better == "max" else ("highest", "lowest")
            write = f'{"MaxSaver" if better == "max" else "MinSaver"}("{metric}")'
            if isinstance(self._ranking, TopK):
                write = f'TopKSaver("{metric}", mode="{better}")'
            logger.warning("%s keeps the %s %s. To keep the %s, use %s", self.name, kept, metric, lost, write)

    @property
    def best(self) -> Best:
        """The best value so far, with the step and moment at which it was logged."""
        return self._ranking.best if isinstance(self._ranking, TopK) else self._ranking

    def on_trigger(self, run: Run) -> None:
        self.save_best(run)

    def save_incomplete(self, run: Run) -> bool:
        self.save_best(run, final_only=True)
        return True
