"""TrainerCallback: call a transformers callback in a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from typing import Any, ClassVar

from hookpoint.adapters.foreign_callbacks._adopted import Adopted, cure, number_of, values_of
from hookpoint.core.errors import BadArgument, NothingToSaveTo
from hookpoint.core.run.run import Run, stepper_of

NO_EFFECT = {
    "load_best_model_at_end": "use hookpoint.callbacks.MinSaver to keep the best weights",
    "max_steps": "pass max_steps to fit",
    "num_train_epochs": "pass epochs to fit",
    "resume_from_checkpoint": "pass resume to the Runner or Loop",
}


class TrainerCallback(Adopted):
    """Call a transformers callback with its own `args`, `state` and `control`.

    As in the Trainer, `state.best_metric` is the best value of the metric `metric_for_best_model`. Checkpoints contain the best
    metric, the log history and, if the callback has a method `state`, its `state()["attributes"]`.
    """

    LIBRARY = "transformers"
    CALLS: ClassVar = {
        "on_setup": ("on_init_end",),
        "on_run_begin": ("on_train_begin",),
        "on_load": ("on_train_begin",),
        "on_epoch_begin": ("on_epoch_begin",),
        "on_train_iter_begin": ("on_step_begin", "on_step_end", "on_substep_end"),
        "on_step_begin": ("on_pre_optimizer_step",),
        "on_step_end": ("on_optimizer_step",),
        "on_train_iter_end": ("on_step_end", "on_substep_end"),
        "on_train_epoch_end": ("on_epoch_end",),
        "on_val_iter_end": ("on_prediction_step",),
        "on_val_epoch_end": ("on_evaluate", "on_log"),
        "on_pred_iter_end": ("on_prediction_step",),
        "on_pred_epoch_end": ("on_predict",),
        "on_save": ("on_save",),
        "on_exception": (),
        "on_run_end": ("on_train_end",),
    }
    ALWAYS = ("on_setup", "on_run_begin", "on_val_epoch_end", "on_exception", "on_run_end")

    args: Any = None
    state: Any = None
    control: Any = None
    _run_of_state: Run | None = None
    _step = 0
    _is_between_steps = True

    def configure(self, options: Mapping[str, Any]) -> None:
        super().configure(options)
        if "args" in self.options and len(self.options) > 1:
            names = ", ".join(f"{name}=" for name in self.options if name != "args")
            raise BadArgument(
                f"adopt({type(self.theirs).__name__}): args= contains all options, so {names} cannot also be passed."
            )
        for name, instead in NO_EFFECT.items():
            if name in self.options:
                raise BadArgument(f"adopt({type(self.theirs).__name__}): {name} has no effect in a run.", **cure(instead))

    def _known_options(self) -> set[str]:
        return {"args", *signature(import_module("transformers").TrainingArguments).parameters}

    # Training

    def _setup(self, run: Run) -> None:
        metric = getattr(self.options.get("args"), "metric_for_best_model", self.options.get("metric_for_best_model"))
        if self.is_a("EarlyStoppingCallback") and metric is None:
            own = f"hookpoint.adapters.adopt({type(self.theirs).__name__}(...)"
            raise self._refuse("needs the name of a metric", write=f'{own}, metric_for_best_model="eval_loss")')
        self._prepare(run)

    def _run_begin(self, run: Run) -> None:
        self._prepare(run)
        self._step, self._is_between_steps = run.step, True
        self.is_training = True
        run.at_log_step(lambda means: self._log_step(run, means))
        if not run.resuming:
            self._load(run)

    def _load(self, run: Run) -> None:
        """Call the method for the start of training. If the run resumes, the state is already restored, as in the Trainer."""
        self._call(run, "on_train_begin")

    def _epoch_begin(self, run: Run) -> None:
        self._call(run, "on_epoch_begin")

    def _train_iter_begin(self, run: Run) -> None:
        if self._is_between_steps:
            self._is_between_steps, self._step = False, run.step
            self._call(run, "on_step_begin")

    def _step_begin(self, run: Run) -> None:
        self._call(run, "on_pre_optimizer_step")

    def _step_end(self, run: Run) -> None:
        # The Trainer increments global_step only after this event.
        self._call(run, "on_optimizer_step", global_step=run.step - 1)

    def _train_iter_end(self, run: Run) -> None:
        self._is_between_steps = run.step > self._step
        self._call(run, "on_step_end" if self._is_between_steps else "on_substep_end")

    def _train_epoch_end(self, run: Run) -> None:
        self._call(run, "on_epoch_end")

    def _save(self, run: Run) -> None:
        self._call(run, "on_save")

    def _exception(self, run: Run) -> None:
        self.is_training = False

    def _run_end(self, run: Run) -> None:
        try:
            if self.is_training:
                self._call(run, "on_train_end")
        finally:
            self.is_training, self._run_of_state = False, None

    # Validation and prediction

    def _val_iter_end(self, run: Run) -> None:
        self._call(run, "on_prediction_step")

    def _val_epoch_end(self, run: Run) -> None:
        values = {name: value for name, value in values_of(run).items() if name.startswith("val_")}
        metrics = {f"eval_{name.removeprefix('val_')}": value for name, value in values.items()}
        self._log(run, metrics)
        metrics["epoch"] = self.state.epoch
        self._call(run, "on_evaluate", metrics=metrics)
        self._update_best(run, metrics)

    def _pred_iter_end(self, run: Run) -> None:
        self._call(run, "on_prediction_step")

    def _pred_epoch_end(self, run: Run) -> None:
        self._call(run, "on_predict", metrics={})

    def _update_best(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Update the best metric after an evaluation, as the Trainer does. NaN is never the best."""
        metric = self.args.metric_for_best_model
        if metric is None:
            return
        value = metrics.get(metric if metric.startswith("eval_") else f"eval_{metric}")
        best = self.state.best_metric
        if value is None or value != value:
            return
        if best is None or (value > best if self.args.greater_is_better else value < best):
            self.state.best_metric, self.state.best_global_step = value, run.step

    # Calling the callback's methods

    def _log_step(self, run: Run, means: Mapping[str, Any]) -> dict[str, Any]:
        values = {name: float(value) for name, value in means.items()}
        if run.optimizer is not None and "learning_rate" in run.hyper:
            values["learning_rate"] = float(run.hyper["learning_rate"])
        self._log(run, values)
        return {}

    def _log(self, run: Run, values: Mapping[str, float]) -> None:
        self._prepare(run)
        self._update_clocks(run)
        logs = {**values, "epoch": self.state.epoch}
        self.state.log_history.append({**logs, "step": run.step})
        self._call(run, "on_log", logs=logs)

    def _call(self, run: Run, event: str, global_step: int | None = None, **more: Any) -> None:
        self._prepare(run)
        self._update_clocks(run)
        if global_step is not None:
            self.state.global_step = global_step
        result = getattr(self.theirs, event)(
            self.args,
            self.state,
            self.control,
            model=run.model,
            processing_class=None,
            optimizer=run.optimizer,
            lr_scheduler=run.lr_scheduler,
            train_dataloader=run.train_loader,
            eval_dataloader=run.val_loader,
            **more,
        )
        if result is not None:
            self.control = result
        self._honour(run, self.control)

    def _honour(self, run: Run, control: Any) -> None:
        """Stop or save if the callback requests it. Ignore requests to evaluate or log: the run has its own schedule."""
        # At the last step, DefaultFlowCallback requests a stop; ignore it, because the run ends anyway.
        is_at_end = run.step >= self.state.max_steps
        if control.should_training_stop and self.is_training and not is_at_end and run.stop_reason is None:
            run.stop(f"{self.name} set control.should_training_stop")
        if control.should_epoch_stop and run.mode == "train":
            run.stop_epoch()
        if control.should_save and self.is_training:
            try:
                run.save(self.name)
            except NothingToSaveTo:
                pass
        control.should_epoch_stop = control.should_save = control.should_evaluate = control.should_log = False

    def _update_clocks(self, run: Run) -> None:
        state, progress = self.state, run.progress
        batches, epochs = number_of(run.train_loader), run.max_epochs  # a Loop has these values only once it has begun
        state.num_train_epochs = sys.maxsize if epochs is None else epochs
        window = self.args.gradient_accumulation_steps
        state.max_steps = -(-batches // window) * epochs if batches and epochs else sys.maxsize
        state.global_step = run.step
        if progress is not None and progress.mode == "train" and progress.total:
            state.epoch = max(run.epoch - 1, 0) + progress.done / progress.total
        elif progress is None or progress.mode == "val":
            state.epoch = (
                float(run.epoch) if run.mode is not None or run.epoch_complete else max(state.epoch or 0.0, run.epoch - 1.0)
            )

    def _prepare(self, run: Run) -> None:
        """Create args, state and control for a run."""
        if self._run_of_state is run:
            return
        transformers, self._run_of_state = import_module("transformers"), run
        self.args = self.options.get("args") or transformers.TrainingArguments(**{**_defaults(run), **self.options})
        if self.is_a("EarlyStoppingCallback") and "args" not in self.options:
            self.args.load_best_model_at_end = True  # older transformers versions require this for early stopping
        self.state, self.control = transformers.TrainerState(), transformers.TrainerControl()
        self.state.is_local_process_zero, self.state.is_world_process_zero = run.local_rank == 0, run.rank == 0
        self._call(run, "on_init_end")

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        if callable(getattr(self.theirs, "state", None)):
            state["attributes"] = dict(self.theirs.state()["attributes"])
        if self.state is not None:
            names = ("best_metric", "best_global_step", "log_history")
            # Older transformers versions have no best_global_step.
            kept = {name: getattr(self.state, name, None) for name in names}
            state["trainer"] = {name: value for name, value in kept.items() if value is not None}
        return state if any(state.values()) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.get("attributes", {}).items():
            setattr(self.theirs, name, value)
        for name, value in state.get("trainer", {}).items():
            setattr(self.state, name, value)


def _defaults(run: Run) -> dict[str, Any]:
    """Return the TrainingArguments values that the run determines."""
    # Without a workdir, use the default output_dir of TrainingArguments.
    folder = "trainer_output" if run.workdir is None else str(run.workdir)
    defaults: dict[str, Any] = {"eval_strategy": "epoch", "output_dir": folder, "report_to": [], "save_strategy": "no"}
    defaults["gradient_accumulation_steps"] = stepper_of(run).accumulate
    if "cuda" not in str(run.device):
        defaults["use_cpu"] = True
    return defaults
