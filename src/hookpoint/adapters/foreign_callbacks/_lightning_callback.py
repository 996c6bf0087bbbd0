"""LightningCallback: call a Lightning callback in a run."""

from __future__ import annotations

from typing import Any, ClassVar

from hookpoint.adapters.foreign_callbacks._adopted import Adopted
from hookpoint.adapters.foreign_callbacks._lightning_module import LightningModuleView
from hookpoint.adapters.foreign_callbacks._lightning_trainer import OPTIONS, LightningTrainer
from hookpoint.adapters.foreign_callbacks._offers import Caller
from hookpoint.core.run.run import Run

NEED_MODULE = ("ModelPruning", "ModelSummary", "RichModelSummary", "WeightAveraging")


class Fit:
    """The objects that a run's Lightning callbacks share: the trainer and the module."""

    def __init__(self, run: Run, package: str, options: dict[str, Any]) -> None:
        self.run, self.caller = run, Caller(run)
        self.trainer = LightningTrainer(self.caller, package, options)
        self._is_module = is_lightning_module(run.model)
        self.module = run.model if self._is_module else LightningModuleView(self.caller, self.trainer)
        self.trainer.module = self.module
        self._trainer_before: Any = None
        if self._is_module:
            self._trainer_before, run.model.trainer = getattr(run.model, "_trainer", None), self.trainer

    def leave(self) -> None:
        """If the model is a LightningModule, restore the trainer that it had before the run."""
        if self._is_module:
            self.module.trainer, self._is_module = self._trainer_before, False


class LightningCallback(Adopted):
    """Call a Lightning callback.

    Its `trainer` argument gives access to the run, and `pl_module` to the run's model. Epochs and batches are counted from 0.

    A checkpoint contains the Lightning callback's `state_dict`, and the entries that its `on_save_checkpoint` adds.
    """

    LIBRARY = "Lightning"
    CALLS: ClassVar = {
        "on_setup": (),
        "on_run_begin": ("setup", "on_fit_start", "on_train_start"),
        "on_load": ("on_fit_start", "on_train_start"),
        "on_train_epoch_begin": ("on_train_epoch_start",),
        "on_train_iter_begin": ("on_train_batch_start",),
        "on_backward_begin": ("on_before_backward",),
        "on_backward_end": ("on_after_backward",),
        "on_step_begin": ("on_before_optimizer_step",),
        "on_train_iter_end": ("on_train_batch_end",),
        "on_val_epoch_begin": ("on_validation_start", "on_validation_epoch_start", "setup"),
        "on_val_iter_begin": ("on_validation_batch_start",),
        "on_val_iter_end": ("on_validation_batch_end",),
        "on_val_epoch_end": ("on_validation_epoch_end", "on_validation_end", "teardown"),
        "on_pred_epoch_begin": ("on_predict_start", "on_predict_epoch_start", "setup"),
        "on_pred_iter_begin": ("on_predict_batch_start",),
        "on_pred_iter_end": ("on_predict_batch_end",),
        "on_pred_epoch_end": ("on_predict_epoch_end", "on_predict_end", "teardown"),
        "on_epoch_end": ("on_train_epoch_end",),
        "on_exception": ("on_exception",),
        "on_run_end": ("on_train_end", "on_fit_end", "teardown"),
    }
    ALWAYS = ("on_setup", "on_run_begin", "on_val_epoch_end", "on_epoch_end", "on_exception", "on_run_end")
    REFUSED: ClassVar = {
        "BatchSizeFinder": "pass batch_size to fit: this callback restarts Lightning's own fit",
        "GradientAccumulationScheduler": "set Runner(accumulate=...): the run accumulates gradients itself",
        "LearningRateFinder": "set the optimizer's learning rate: this callback restarts Lightning's own fit",
        "StochasticWeightAveraging": (
            "use hookpoint.callbacks.StochasticWeightAveraging: Lightning's callback changes Lightning's own loop"
        ),
        "ThroughputMonitor": "use hookpoint.callbacks.ThroughputTracker: Lightning's callback reads Lightning's own loops",
    }

    _fit: Fit | None = None

    def _known_options(self) -> set[str]:
        return set(OPTIONS)

    def _check(self) -> None:
        super()._check()
        if self.has("on_before_zero_grad"):
            raise self._refuse("defines on_before_zero_grad, but a hookpoint run has no such point", use="on_after_backward")

    def _setup(self, run: Run) -> None:
        needs_module = any(map(self.is_a, NEED_MODULE))
        if needs_module and not is_lightning_module(run.model):
            raise self._refuse("needs a LightningModule as the model", **{"pass": "one to the Runner or Loop"})

    # Fit

    def _run_begin(self, run: Run) -> None:
        fit = self._called(run)
        fit.trainer.enter("fit", "train")
        self.theirs.setup(fit.trainer, fit.module, stage="fit")
        self.is_training = True
        if not run.resuming:
            self._load(run)

    def _load(self, run: Run) -> None:
        """Call the Lightning callback's `on_fit_start` and `on_train_start`.

        As in Lightning, a resumed run restores its state before these calls.
        """
        self._call(run, "on_fit_start")
        self._call(run, "on_train_start")

    def _train_epoch_begin(self, run: Run) -> None:
        self._call(run, "on_train_epoch_start")

    def _train_iter_begin(self, run: Run) -> None:
        self._call(run, "on_train_batch_start", run.batch, run.batch_idx)

    def _backward_begin(self, run: Run) -> None:
        self._call(run, "on_before_backward", run.loss)

    def _backward_end(self, run: Run) -> None:
        self._call(run, "on_after_backward")

    def _step_begin(self, run: Run) -> None:
        for optimizer in run.optimizers:
            self._call(run, "on_before_optimizer_step", optimizer)

    def _train_iter_end(self, run: Run) -> None:
        loss = run.loss
        outputs = {"loss": loss.detach() if hasattr(loss, "detach") else loss}
        self._call(run, "on_train_batch_end", outputs, run.batch, run.batch_idx)

    def _epoch_end(self, run: Run) -> None:
        self._call(run, "on_train_epoch_end")
        self.fit_of(run).trainer.fit_loop.epoch_loop.val_loop.mark(False)

    def _exception(self, run: Run, error: BaseException) -> None:
        if self.is_training:
            self.is_training = False
            self._call(run, "on_exception", error)

    def _run_end(self, run: Run) -> None:
        fit = self._called(run)
        try:
            if self.is_training:
                fit.trainer.is_over = True
                self._call(run, "on_train_end")
                self._call(run, "on_fit_end")
                self.theirs.teardown(fit.trainer, fit.module, stage="fit")
        finally:
            fit.leave()
            self._fit, self.is_training = None, False

    # Validation and prediction

    def _val_epoch_begin(self, run: Run) -> None:
        self._enter(run, "validate")
        self._call(run, "on_validation_start")
        self._call(run, "on_validation_epoch_start")

    def _val_iter_begin(self, run: Run) -> None:
        self._call(run, "on_validation_batch_start", run.batch, run.batch_idx)

    def _val_iter_end(self, run: Run) -> None:
        self._call(run, "on_validation_batch_end", run.outputs, run.batch, run.batch_idx)

    def _val_epoch_end(self, run: Run) -> None:
        self.fit_of(run).trainer.fit_loop.epoch_loop.val_loop.mark(True)
        self._call(run, "on_validation_epoch_end")
        self._call(run, "on_validation_end")
        self._leave(run, "validate")

    def _pred_epoch_begin(self, run: Run) -> None:
        self._enter(run, "predict")
        self._call(run, "on_predict_start")
        self._call(run, "on_predict_epoch_start")

    def _pred_iter_begin(self, run: Run) -> None:
        self._call(run, "on_predict_batch_start", run.batch, run.batch_idx)

    def _pred_iter_end(self, run: Run) -> None:
        self._call(run, "on_predict_batch_end", run.outputs, run.batch, run.batch_idx)

    def _pred_epoch_end(self, run: Run) -> None:
        self._call(run, "on_predict_epoch_end")
        self._call(run, "on_predict_end")
        self._leave(run, "predict")

    def _enter(self, run: Run, function: str) -> None:
        """Begin a validation or prediction pass. Outside a fit, also call the Lightning callback's `setup`."""
        fit = self._called(run)
        fit.trainer.enter("fit" if self.is_training else function, function)
        if not self.is_training:
            self.theirs.setup(fit.trainer, fit.module, stage=function)

    def _leave(self, run: Run, stage: str) -> None:
        fit = self._called(run)
        if self.is_training:
            fit.trainer.enter("fit", "train")
            return
        self.theirs.teardown(fit.trainer, fit.module, stage=stage)
        fit.leave()
        self._fit = None

    # Calls

    def _call(self, run: Run, method: str, *args: Any) -> None:
        fit = self._called(run)
        getattr(self.theirs, method)(fit.trainer, fit.module, *args)

    def _called(self, run: Run) -> Fit:
        fit = self.fit_of(run)
        fit.caller.name = self.name
        return fit

    def fit_of(self, run: Run) -> Fit:
        """Return the `Fit` that this callback shares with the run's other Lightning callbacks."""
        if self._fit is None or self._fit.run is not run:
            others = [entry.subject for entry in run.hooks.entries if isinstance(entry.subject, LightningCallback)]
            if others[0] is self:
                options = {name: value for other in others for name, value in other.options.items()}
                self._fit = Fit(run, self._base.__module__.removesuffix(".callbacks.callback"), options)
            else:
                self._fit = others[0].fit_of(run)
            self._fit.caller.name = self.name
        return self._fit

    def state_dict(self) -> dict[str, Any]:
        state = {"state_dict": self.theirs.state_dict()}
        if self.has("on_save_checkpoint") and self._fit is not None:
            added: dict[str, Any] = {}
            self.theirs.on_save_checkpoint(self._fit.trainer, self._fit.module, added)
            state["checkpoint"] = added
        return state if any(state.values()) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.theirs.load_state_dict(state["state_dict"])
        if "checkpoint" in state and self._fit is not None:
            self.theirs.on_load_checkpoint(self._fit.trainer, self._fit.module, state["checkpoint"])


def is_lightning_module(model: Any) -> bool:
    """Return whether an object is a LightningModule."""
    packages = ("lightning", "pytorch_lightning")
    return any(
        cls.__name__ == "LightningModule" and cls.__module__.partition(".")[0] in packages for cls in type(model).__mro__
    )
