"""EarlyStopping: stop when a metric no longer improves."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import choice, integer, number
from hookpoint.callbacks._shared.metric_watcher import MetricWatcher
from hookpoint.callbacks._shared.new_values import is_current, warn_outdated
from hookpoint.callbacks._shared.saver import is_claimed, measured
from hookpoint.callbacks._shared.sharded_tensors import full_state
from hookpoint.core.callback.callback import Options
from hookpoint.core.callback.knob import Knob
from hookpoint.core.checkpoint.stateful import has_state, load_state, state_of
from hookpoint.core.errors import BadLoop
from hookpoint.core.log.best import Best, Mode, mode_of
from hookpoint.core.logger import logger
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment
from hookpoint.core.text.terminal import say
from hookpoint.storage.checkpoint.snapshot import Snapshots
from hookpoint.storage.retention import KeepNewest


class EarlyStopping(MetricWatcher):
    """Stop the run when a metric stops improving.

        monitor: Name of the metric. Raises if the metric is missing.
        min_delta: Smallest change that counts as an improvement.
        patience: Number of values without improvement before stopping. 0 and 1 both stop at the first such value.
        mode: "min", "max", or "auto", which infers the mode from the metric's name.
        min_delta_mode: "abs", or "rel" for a `min_delta` relative to the best value: 0.01 is one percent.
        baseline: If given, a value counts as an improvement only if it also beats the baseline.
        restore_best_weights: Load the best weights at the end of the run, unless an exception ended it.
        start_from_epoch: Number of epochs at the start of the run to ignore.
        verbose: 1 prints a line when the run is stopped.

    NaN is never an improvement. The first value that is not NaN becomes the best, even if it is infinite. An epoch without a
    new value does not count. With a step schedule, a value is the mean of the values logged since the last trigger.

    The best weights are stored in host memory and in the checkpoint. The last checkpoint contains the last weights, so that you
    can resume the run with more epochs. EarlyStopping itself requests no checkpoint for a new best value. If a saver writes a
    checkpoint at that moment, that checkpoint is also available as `checkpoints/best-<metric>/`. The checkpoint's manifest
    contains the value, and no retention limit deletes the checkpoint.

    Reads the metric `monitor` and sends the event "stop". If you resume a stopped run, EarlyStopping stops it again unless you
    raise `patience`.

    >>> with Loop([EarlyStopping("score", patience=2, mode="max")]) as run:
    ...     for epoch in run.epochs(10):
    ...         run.log(score=[0.5, 0.75, 0.7, 0.75, 0.8][epoch - 1])
    >>> run.epoch
    4
    """

    knobs = (Knob("patience", int, low=0, about="values without improvement before stopping"),)
    keeps: ClassVar[str] = "the best value, the number of values since then, and the best weights"
    step_cost: ClassVar[str] = f"{MetricWatcher.step_cost}; with `restore_best_weights`, a copy of the weights per new best"

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        *,
        mode: str = "auto",
        min_delta_mode: str = "abs",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
        verbose: int = 0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(monitor, **options)
        self.start_from_epoch = integer("EarlyStopping", "start_from_epoch", start_from_epoch)
        self.restore_best_weights = restore_best_weights
        self.verbose = verbose
        self.marks = {f"best-{monitor}": KeepNewest(1)}
        self._patience = self._decision = Patience(
            mode_of(monitor, mode),
            integer("EarlyStopping", "patience", patience),
            min_delta=number("EarlyStopping", "min_delta", min_delta, least=0.0),
            relative=choice("EarlyStopping", "min_delta_mode", min_delta_mode, ("abs", "rel")) == "rel",
            baseline=None if baseline is None else number("EarlyStopping", "baseline", baseline),
        )
        self._snapshots = Snapshots()
        self._weights: Any = None
        self._has_warned = self._has_failed = False

    @property
    def patience(self) -> int:
        """The number of values without improvement before stopping."""
        return self._patience.patience

    @patience.setter
    def patience(self, number: int) -> None:
        self._patience.patience = integer("EarlyStopping", "patience", number)

    @property
    def best(self) -> Best:
        """The best value so far, and its step."""
        return self._patience.best

    @property
    def stopped(self) -> bool:
        """Whether this callback has stopped the run."""
        return self._patience.is_over

    def on_setup(self, run: Run) -> None:
        if self.restore_best_weights and not has_state(run.model):
            problem = "restore_best_weights needs a model with state_dict and load_state_dict"
            raise BadLoop(f"{self.name}: {problem}.", give="model=..., or leave restore_best_weights out")

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._has_failed = False

    def on_load(self, run: Run) -> None:
        if self.restore_best_weights and self._weights is None and self.best.value is not None:
            line = "%s: the checkpoint does not contain the best weights, from step %s; only a later best can be restored"
            logger.warning(line, self.name, self.best.step)
        if self.stopped:
            logger.warning("%s. The run was already stopped for this reason; raise patience to resume it", self._reason())
            run.stop(self._reason())

    def take(self, run: Run, moment: Moment, value: float) -> None:
        if run.epoch <= self.start_from_epoch:
            return
        if self._patience.take(value, run.moment):
            self._mark_best(run, moment, value)
            if self.restore_best_weights:
                self._copy_weights(run, measured_at=moment)
        if self.stopped:
            if self.verbose:
                say(f"epoch {run.epoch}: {self._reason()}")
            run.stop(self._reason())
            self._save_last(run)

    def on_epoch_end(self, run: Run) -> None:
        super().on_epoch_end(run)
        if run.epoch == run.max_epochs:
            self._save_last(run)

    def on_exception(self) -> None:
        self._has_failed = True

    def on_run_end(self, run: Run) -> None:
        if self._weights is None or self._has_failed:
            return
        # Even if the last epoch is the best: SwapEMAWeights replaces the training weights only during on_epoch_end.
        machine_of(run).saving.before_restoring()
        load_state(run.model, self._weights)
        moment = self.best.moment  # older checkpoints store only the step
        if not (self.best.step == run.step if moment is None else moment.is_same(run.moment)):
            logger.info("%s restored the weights from step %s", self.name, self.best.step)
            run.put_event("restore", metric=self.monitor, value=self.best.value, step_of_best=self.best.step)

    def _mark_best(self, run: Run, moment: Moment, value: float) -> None:
        """If a saver writes a checkpoint at this moment, tag it as the best."""
        (tag, keep), saving = next(iter(self.marks.items())), machine_of(run).saving
        if saving.savers and is_current(moment, run) and not is_claimed(run, tag, besides=self):
            saving.mark(tag, keep, measured(self.monitor, self.best.mode, value, moment))

    def _copy_weights(self, run: Run, *, measured_at: Moment) -> None:
        self._weights = self._snapshots.take({"model": full_state(state_of(run.model))}, outlives_the_call=True)["model"]
        if not is_current(measured_at, run) and not self._has_warned:
            self._has_warned = True
            warn_outdated(self.monitor, measured_at, run, f"{self.name} stores the current weights")

    def _save_last(self, run: Run) -> None:
        """Save the last weights before the best ones replace them, if the run has a saver."""
        if self._weights is not None and any(getattr(entry.subject, "saves", False) for entry in run.hooks.entries):
            run.save("end")

    def _reason(self) -> str:
        best, waited = self.best, self._patience.waited
        since = "" if best.value is None else f" over {best.value:g} (step {best.step})"
        return f"{self.name}: no improvement{since} in {waited} value{'s' if waited > 1 else ''}"

    def reset(self) -> None:
        super().reset()
        self._snapshots, self._weights = Snapshots(), None
        self._has_warned = False

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "weights": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._weights = state["weights"] if self.restore_best_weights else None


class Patience:
    """Count consecutive values without progress. Patience runs out after `patience` such values, or after one if it is 0.

    A value counts as progress if it beats the last value that counted as progress by more than `min_delta`. If `baseline` is
    given, the first value that counts as progress must beat `baseline`. NaN never counts as progress. `best` is the best of all
    values, regardless of the baseline.

    >>> patience = Patience("min", 2)
    >>> [(patience.take(value, step), patience.is_over) for step, value in enumerate([3.0, 2.0, 2.0, float("nan")])]
    [(True, False), (True, False), (False, False), (False, True)]
    """

    def __init__(
        self, mode: Mode, patience: int = 0, *, min_delta: float = 0.0, relative: bool = False, baseline: float | None = None
    ) -> None:
        self.best = Best(mode, min_delta=min_delta, relative=relative)
        self.patience = patience
        self._progress = Best(mode, min_delta=min_delta, threshold=baseline, relative=relative)
        self.reset()

    def reset(self) -> None:
        """Discard all values."""
        self.best.reset()
        self._progress.reset()
        self.waited = 0

    @property
    def is_over(self) -> bool:
        return self.waited > 0 and self.waited >= self.patience

    def take(self, value: float, at: Moment | int) -> bool:
        """Add a value; return whether it is the best so far."""
        self.waited = 0 if self._progress.take(value, at) else self.waited + 1
        return self.best.take(value, at)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.state_dict(), "progress": self._progress.state_dict(), "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state["best"])
        self._progress.reset()
        if "progress" in state:
            self._progress.load_state_dict(state["progress"])
        elif self.best.value is not None and self._progress.is_beaten_by(self.best.value):
            self._progress.load_state_dict(state["best"])  # older checkpoints do not store progress
        self.waited = state["waited"]
