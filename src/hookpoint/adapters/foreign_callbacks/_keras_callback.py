"""KerasCallback: call a Keras callback in a run."""

from __future__ import annotations

from typing import Any, ClassVar

from hookpoint.adapters.foreign_callbacks._adopted import Adopted, number_of, values_of
from hookpoint.adapters.foreign_callbacks._keras_model import KerasModel, is_keras
from hookpoint.adapters.foreign_callbacks._keras_state import load_state, state_of, without_truncating
from hookpoint.adapters.foreign_callbacks._offers import Caller
from hookpoint.core.run.run import Run


class RunningMeans:
    """The running mean of each metric in a pass. Keras callbacks receive these means after each batch."""

    def __init__(self) -> None:
        self._batch: tuple[int, int] | None = None  # the last batch's iteration and index
        self._samples = 0
        # For each metric, the weighted sum of its values and the sum of the weights.
        self._sums: dict[str, tuple[float, float]] = {}

    def after_batch(self, run: Run, values: dict[str, float]) -> dict[str, float]:
        """Add a batch's values, and return the means. If another callback has already added this batch, add nothing."""
        batch = run.iteration, run.batch_idx
        if batch != self._batch:
            if run.batch_idx == 0:
                self._sums = {}
            weight, self._samples, self._batch = max(run.samples - self._samples, 1), run.samples, batch
            for name, value in values.items():
                total, weights = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = total + weight * value, weights + weight
        return {name: total / weights for name, (total, weights) in self._sums.items()}


class Fit:
    """The objects that a run's Keras callbacks share: the model, and the epoch's logs, which callbacks may change."""

    def __init__(self, run: Run) -> None:
        self.run, self.caller = run, Caller(run)
        self.model = KerasModel(self.caller)
        self.train_means, self.val_means = RunningMeans(), RunningMeans()
        self._logs: dict[str, Any] = {}
        self._logs_of: Any = None

    def logs(self) -> dict[str, Any]:
        """Return the epoch's metrics. All callbacks share this dict, so each sees what earlier callbacks have added."""
        now = self.run.moment
        if self._logs_of != now:
            self._logs, self._logs_of = {}, now
        for name, value in values_of(self.run).items():
            self._logs.setdefault(name, value)
        return self._logs


class KerasCallback(Adopted):
    """Call a Keras callback. Epochs and batches count from 0, and `self.model` stands for the run's model.

    If the Keras callback has a `state_dict` method, its result is stored in checkpoints. The callbacks that come with Keras
    have no such method. For some of them, such as EarlyStopping, the attributes that a resumed run needs are stored.
    """

    LIBRARY = "Keras"
    CALLS: ClassVar = {
        "on_setup": (),
        "on_run_begin": ("on_train_begin",),
        "on_epoch_begin": ("on_epoch_begin",),
        "on_train_iter_begin": ("on_train_batch_begin", "on_batch_begin"),
        "on_train_iter_end": ("on_train_batch_end", "on_batch_end"),
        "on_val_epoch_begin": ("on_test_begin",),
        "on_val_iter_begin": ("on_test_batch_begin",),
        "on_val_iter_end": ("on_test_batch_end",),
        "on_val_epoch_end": ("on_test_end",),
        "on_pred_epoch_begin": ("on_predict_begin",),
        "on_pred_iter_begin": ("on_predict_batch_begin",),
        "on_pred_iter_end": ("on_predict_batch_end",),
        "on_pred_epoch_end": ("on_predict_end",),
        "on_epoch_end": ("on_epoch_end",),
        "on_exception": (),
        "on_run_end": ("on_train_end",),
    }
    ALWAYS = ("on_setup", "on_run_begin", "on_epoch_begin", "on_exception", "on_run_end")
    REFUSED: ClassVar = {
        "BackupAndRestore": "use hookpoint.callbacks.ModelSaver: a run with a workdir resumes automatically",
        "OrbaxCheckpoint": "use hookpoint.callbacks.ModelCheckpoint: it saves the run's model",
        "SwapEMAWeights": "use hookpoint.callbacks.SwapEMAWeights: Keras's version reads a Keras optimizer's averages",
        "TensorBoard": (
            "use hookpoint.callbacks.TFEventWriter, a default monitor: Keras's version needs TensorFlow and a Keras model"
        ),
    }

    _fit: Fit | None = None

    def _setup(self, run: Run) -> None:
        if self.is_a("ModelCheckpoint") and not is_keras(run.model):
            raise self._refuse("saves Keras models only", use="hookpoint.callbacks.ModelCheckpoint")

    def _run_begin(self, run: Run) -> None:
        with without_truncating(self, resuming=run.resuming):
            self._call(run, "on_train_begin", {})
        self.is_training = True

    def _epoch_begin(self, run: Run) -> None:
        self._set_params(run)  # in a Loop, the number of epochs is not known before this point
        self._call(run, "on_epoch_begin", run.epoch - 1, {})

    def _train_iter_begin(self, run: Run) -> None:
        self._call(run, "on_train_batch_begin", run.batch_idx, logs={})

    def _train_iter_end(self, run: Run) -> None:
        means = self.fit_of(run).train_means.after_batch(run, values_of(run))
        self._call(run, "on_train_batch_end", run.batch_idx, logs=means)

    def _val_epoch_begin(self, run: Run) -> None:
        self._call(run, "on_test_begin", {})

    def _val_iter_begin(self, run: Run) -> None:
        self._call(run, "on_test_batch_begin", run.batch_idx, logs={})

    def _val_iter_end(self, run: Run) -> None:
        means = self.fit_of(run).val_means.after_batch(run, _of_validation(run))
        self._call(run, "on_test_batch_end", run.batch_idx, logs=means)

    def _val_epoch_end(self, run: Run) -> None:
        self._call(run, "on_test_end", _of_validation(run))

    def _pred_epoch_begin(self, run: Run) -> None:
        self._call(run, "on_predict_begin", {})

    def _pred_iter_begin(self, run: Run) -> None:
        self._call(run, "on_predict_batch_begin", run.batch_idx, logs={})

    def _pred_iter_end(self, run: Run) -> None:
        self._call(run, "on_predict_batch_end", run.batch_idx, logs={"outputs": run.outputs})

    def _pred_epoch_end(self, run: Run) -> None:
        self._call(run, "on_predict_end", {})

    def _epoch_end(self, run: Run) -> None:
        self._call(run, "on_epoch_end", run.epoch - 1, self.fit_of(run).logs())

    def _exception(self, run: Run) -> None:
        self.is_training = False

    def _run_end(self, run: Run) -> None:
        try:
            if self.is_training:
                self._call(run, "on_train_end", values_of(run))
        finally:
            self._fit, self.is_training = None, False

    def _call(self, run: Run, method: str, *args: Any, **kwargs: Any) -> None:
        self.fit_of(run).caller.name = self.name
        getattr(self.theirs, method)(*args, **kwargs)

    def fit_of(self, run: Run) -> Fit:
        """Return the `Fit` that this callback shares with the run's other Keras callbacks."""
        if self._fit is None or self._fit.run is not run:
            first = next(entry.subject for entry in run.hooks.entries if isinstance(entry.subject, KerasCallback))
            self._fit = Fit(run) if first is self else first.fit_of(run)
            self._fit.caller.name = self.name
            self._set_params(run)
            self.theirs.set_model(self._fit.model)
        return self._fit

    def _set_params(self, run: Run) -> None:
        self.theirs.set_params({"epochs": run.max_epochs, "steps": number_of(run.train_loader), "verbose": 1})

    def state_dict(self) -> dict[str, Any]:
        return state_of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_state(self, state)


def _of_validation(run: Run) -> dict[str, float]:
    return {name.removeprefix("val_"): value for name, value in values_of(run).items() if name.startswith("val_")}
