"""EarlyStopping: stop when a metric no longer gets better."""

from __future__ import annotations

import logging
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import is_relative, number, whole
from hookpoint.callbacks._shared.metric_watcher import MetricWatcher
from hookpoint.callbacks._shared.saver import is_claimed, measured
from hookpoint.callbacks._shared.sharded_tensors import full_state
from hookpoint.callbacks._shared.unseen_values import is_current, moment_names
from hookpoint.callbacks.stopping._patience import Patience
from hookpoint.core.callback.callback import Options
from hookpoint.core.checkpoint.stateful import has_state, load_state, state_of
from hookpoint.core.errors import BadLoop
from hookpoint.core.log.best import Best, mode_of
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment
from hookpoint.core.text.terminal import say
from hookpoint.storage.checkpoint.snapshot import Snapshots
from hookpoint.storage.workdir.retention import KeepNewest

logger = logging.getLogger("hookpoint")


class EarlyStopping(MetricWatcher):
    """Stop the run when a metric has not got better for `patience` values; 0 and 1 stop at the first that is not better.

    Better is better than the best by more than `min_delta`; with `min_delta_mode="rel"` that is a share of the best, so that
    0.01 is one percent. The first value that is not NaN becomes the best, also an infinite one. With `baseline`, that is the
    first best: a metric that improves and never beats the baseline stops the run too. `mode` is "min", "max", or "auto",
    which goes by the metric's name. The first `start_from_epoch` epochs do not count. NaN is never better, an epoch without a
    new value does not count, and a missing metric is an error. With `verbose=1` the stop is printed.

    With `restore_best_weights` the model has its best weights when the run ends, stopped early or not, unless an exception
    ended it. They are kept in the memory of the host, and in the checkpoint. The last checkpoint has the last weights, with
    which a longer run resumes. Where a saver writes a checkpoint at a new best, that one is `checkpoints/best-<metric>/` too,
    with the value in its manifest, and no saver's limit deletes it; this callback asks for no checkpoint by itself.

    Triggered at the end of each complete epoch, unless `.when(...)` says otherwise; restores at on_run_end. Reads `monitor`,
    sends the event "stop". Keeps the best value, what it has counted and the best weights in the checkpoint; a run that it had
    stopped is stopped again when it is resumed, unless `patience` is higher now. Runs on all ranks. A step pays nothing, a new
    best with `restore_best_weights` for a copy of the weights.

    With a step schedule it looks at the mean of what was logged since it last looked; a
    step that logs the metric pays for an addition then.

    >>> with Loop([EarlyStopping("score", patience=2, mode="max")]) as run:
    ...     for epoch in run.epochs(10):
    ...         run.log(score=[0.5, 0.75, 0.7, 0.75, 0.8][epoch - 1])
    >>> run.epoch
    4
    """

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
        self.start_from_epoch = whole("EarlyStopping", "start_from_epoch", start_from_epoch)
        self.restore_best_weights = restore_best_weights
        self.verbose = verbose
        self.marks = {f"best-{monitor}": KeepNewest(1)}
        self._patience = Patience(
            mode_of(monitor, mode),
            whole("EarlyStopping", "patience", patience),
            min_delta=number("EarlyStopping", "min_delta", min_delta, least=0.0),
            relative=is_relative("EarlyStopping", min_delta_mode),
            baseline=None if baseline is None else number("EarlyStopping", "baseline", baseline),
        )
        self._snapshots = Snapshots()
        self._weights: Any = None
        self._has_warned = self._has_failed = False

    @property
    def best(self) -> Best:
        """The best value so far, and its step."""
        return self._patience.best

    @property
    def stopped(self) -> bool:
        """Whether it has stopped the run."""
        return self._patience.is_over

    def on_setup(self, run: Run) -> None:
        if self.restore_best_weights and not has_state(run.model):
            raise BadLoop(
                f"{self.name} is to restore the best weights, and the model has no state_dict and load_state_dict.",
                give="model=..., or leave restore_best_weights out",
            )

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._has_failed = False

    def on_load(self, run: Run) -> None:
        if self.stopped:
            logger.warning("%s; that had stopped this run, and a higher patience goes on with it", self._reason())
            run.stop(self._reason())

    def take(self, run: Run, moment: Moment, value: float) -> None:
        if run.epoch <= self.start_from_epoch:
            return
        if self._patience.take(value, run.moment):
            self._mark_best(run, moment, value)
            if self.restore_best_weights:
                self._keep_weights(run, measured_at=moment)
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
        if self._weights is not None and not self._has_failed and not self._is_best_of_now(run):
            machine_of(run).saving.before_restoring()
            load_state(run.model, self._weights)
            logger.info("%s restored the weights of step %s", self.name, self.best.step)
            run.put_event("restore", metric=self.monitor, value=self.best.value, step_of_best=self.best.step)

    def _is_best_of_now(self, run: Run) -> bool:
        moment = self.best.moment  # older checkpoints have the step only
        return self.best.step == run.step if moment is None else moment.is_same(run.moment)

    def _mark_best(self, run: Run, moment: Moment, value: float) -> None:
        """Give the checkpoint of now, if a saver writes one, the tag of the best."""
        (tag, keep), saving = next(iter(self.marks.items())), machine_of(run).saving
        if saving.savers and is_current(moment, run) and not is_claimed(run, tag, besides=self):
            saving.mark(tag, keep, measured(self.monitor, self.best.mode, value, moment))

    def _keep_weights(self, run: Run, *, measured_at: Moment) -> None:
        self._weights = self._snapshots.take({"model": full_state(state_of(run.model))}, outlives_the_call=True)["model"]
        if not is_current(measured_at, run) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "'%s' was measured at %s, and it is %s now: the weights that %s keeps are those of now."
                " Trigger it where the metric is measured, with .when(...)",
                self.monitor,
                *moment_names(measured_at, run.moment),
                self.name,
            )

    def _save_last(self, run: Run) -> None:
        """Have the last weights in a checkpoint, where there is one at the end anyway, before the best ones replace them."""
        if self._weights is not None and any(getattr(entry.subject, "saves", False) for entry in run.hooks.entries):
            run.save("end")

    def _reason(self) -> str:
        best, waited = self.best, self._patience.waited
        than = "" if best.value is None else f" than {best.value:g}, of step {best.step},"
        return f"{self.name}: nothing better{than} in {waited} value{'s' if waited > 1 else ''}"

    def reset(self) -> None:
        super().reset()
        self._patience.reset()
        self._snapshots, self._weights = Snapshots(), None
        self._has_warned = False

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._patience.state_dict(), "weights": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._patience.load_state_dict(state)
        self._weights = state["weights"] if self.restore_best_weights else None
