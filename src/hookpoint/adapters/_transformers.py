"""The adapter for Hugging Face's transformers.Trainer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from hookpoint.adapters._attachment import Attachment
from hookpoint.adapters._hosted_run import NO_SKIPS, UNAVAILABLE, HostedRun, Options, guarded
from hookpoint.adapters._scheduled_rates import ScheduledRates
from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import BadArgument
from hookpoint.core.logger import logger
from hookpoint.core.loop.host import Host, NotUnderHost
from hookpoint.core.run.run_loop import Mode
from hookpoint.storage.checkpoint.layout import safe_name

NAME = "transformers.Trainer"
HOST = Host(
    NAME,
    {
        **UNAVAILABLE,
        **NO_SKIPS,
        "on_backward_begin": "the trainer has no event before the backward pass",
        "save": "the trainer writes its own checkpoints; set save_strategy in its TrainingArguments",
    },
)
# This many epochs or more mean no limit. If only the number of steps is limited, the trainer sets sys.maxsize epochs.
UNLIMITED = 2**31
OF_THE_TRAINER = ("epoch", "loss", "step")  # fields of the trainer's logs that the run logs itself
WRAPPED = ("training_step", "compute_loss", "evaluate", "prediction_step", "save_model")


def transformers(trainer: Any, callbacks: Any, *, outputs: bool = True, **options: Unpack[Options]) -> TransformersAdapter:
    """Attach hookpoint's callbacks to a `transformers.Trainer`. They run in every `trainer.train()` until `detach()`.

    Each call to `trainer.train` is a run. `trainer.evaluate` and `trainer.predict` fire only the points of their pass. Each
    micro-batch is an iteration. `loss` is not divided by the number of accumulated batches. In the run, the metric `eval_x`
    becomes `val_x`. All values that the trainer logs are sent to the monitors. The callbacks' state is stored in each
    `checkpoint-N`, and `trainer.train(resume_from_checkpoint=...)` restores it. The name of the state file contains `name`, so
    two lists of callbacks in one trainer need different names. If a callback changes the learning rate, all later rates
    from the trainer's scheduler are scaled by the same factor.

    outputs: Provide `run.outputs` in training. This keeps the model's outputs in memory until the iteration ends. Pass False if
        the outputs are too large.

    options: Options of `hookpoint.Loop`: workdir, name, extra_callbacks, monitors, log_every, samples, config, state,
        wait_seconds, control.
    """
    for name in ("train", "add_callback", "evaluation_loop", *WRAPPED):
        if not callable(getattr(trainer, name, None)):
            raise BadArgument(
                f"adapters.transformers: {type(trainer).__name__} is not a transformers.Trainer: it has no {name}()."
            )
    return TransformersAdapter(trainer, HostedRun(callbacks, HOST, options), options.get("name"), keeps_outputs=outputs)


class TransformersAdapter(Attachment):
    """Callbacks attached to a trainer. `detach()`, or the end of a `with` statement, removes them."""

    def __init__(self, trainer: Any, hosted: HostedRun, name: str | None, *, keeps_outputs: bool) -> None:
        super().__init__(hosted)
        self._state_file = "hookpoint.state" if name is None else f"hookpoint-{safe_name(name)}.state"
        self._trainer, self._keeps_outputs = trainer, keeps_outputs
        self._checkpoint: Path | None = None
        self._rates = ScheduledRates(None, None)
        self._loader: Any = None  # the loader of the training data; None outside training
        # The loss of the batch, and whether compute_loss received `num_items_in_batch`.
        self._computed: tuple[Any, bool] | None = None
        self._is_stepping = self._epoch_is_over = False
        self._evaluations = self._last_logged = 0
        self._saved_at: int | None = None  # the step of the last checkpoint that has our state
        self._awaited: set[str] = set()
        self._prefix = ""
        self.wrap_entry(trainer, "train", self._train)
        self.wrap_entry(trainer, "evaluation_loop", self._evaluation_loop)

    # The run

    def _train(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(method).bind(*args, **kwargs).arguments.get("resume_from_checkpoint")
        self._checkpoint = None if given is None or isinstance(given, bool) else Path(given)
        listener = type("HookpointCallback", (Listener, import_module("transformers").TrainerCallback), {})(self)
        self._trainer.add_callback(listener)
        try:
            result = method(*args, **kwargs)
        except BaseException as error:
            self.hosted.fail(error)
            raise
        finally:
            self._loader = None
            self._trainer.remove_callback(listener)
        if self.hosted.is_running:
            self.hosted.finish()
        return result

    @guarded
    def begin(self, args: Any, state: Any, control: Any, objects: Mapping[str, Any]) -> None:
        optimizer, scheduler = objects["optimizer"], objects["lr_scheduler"]
        # accelerate may have wrapped the optimizer and the scheduler
        optimizer, scheduler = getattr(optimizer, "optimizer", optimizer), getattr(scheduler, "scheduler", scheduler)
        self._loader, self._last_logged = objects["train_dataloader"], state.global_step
        self._epoch_is_over, self._evaluations, self._saved_at = False, 0, None
        self._awaited.clear()
        self.hosted.start(
            **self._place(args, state),
            epochs=None if state.num_train_epochs >= UNLIMITED else int(state.num_train_epochs),
            model=self._trainer.model,
            optimizer=optimizer,
            device=args.device,
        )
        # The scheduler is not passed to the run, because the run would warn that two objects set the learning rate.
        self._rates = ScheduledRates(optimizer, scheduler)
        for name in WRAPPED:
            self._wrap(name)
        self._obey(control)

    def _wrap(self, name: str) -> None:
        """Wrap a trainer method in the adapter method of the same name until the run ends."""
        method = getattr(self._trainer, name)
        self.hosted.wrap(self._trainer, name, functools.wraps(method)(functools.partial(getattr(self, f"_{name}"), method)))

    def _place(self, args: Any, state: Any) -> dict[str, Any]:
        """Return the callbacks' state from the checkpoint that the trainer resumes from.

        If the checkpoint does not contain this state, return the trainer's counters.
        """
        if not state.global_step:
            return {}
        path = (self._checkpoint or _folder(args, state)) / self._state_file
        saved = self.hosted.read_state(path)
        if saved is not None:
            return {"state": saved, "source": str(path)}
        logger.warning("%s does not exist: the callbacks start from scratch, at step %d", path, state.global_step)
        epochs, step = int(state.epoch or 0), int(state.global_step)
        counts = {"epoch": epochs, "epochs_done": epochs, "step": step, "iteration": step * args.gradient_accumulation_steps}
        return {"clocks": counts}

    def _obey(self, control: Any) -> None:
        driver = self.hosted.driver
        if driver.wants_stop:
            control.should_training_stop = True
        elif driver.mode == "train" and driver.wants_end_pass:
            control.should_epoch_stop = True

    # Epochs

    @guarded
    def begin_epoch(self, control: Any) -> None:
        self._settle(control, is_late=True)
        self._epoch_is_over = False
        self.hosted.driver.start_epoch()
        self.hosted.driver.start_pass("train", total=length_of(self._loader), loader=self._loader)
        self._obey(control)

    @guarded
    def end_epoch(self, state: Any, control: Any) -> None:
        """End the epoch's training pass. The epoch itself ends after the log and the evaluation that the trainer requests."""
        self._epoch_is_over = True
        while self.hosted.driver.mode is not None:
            self.hosted.driver.finish_pass()
        if control.should_log and state.global_step > self._last_logged:
            self._awaited.add("log")
        if control.should_evaluate:
            self._awaited.add("evaluation")
        self._settle(control)

    def _settle(self, control: Any, came: str = "", *, is_late: bool = False) -> None:
        """End the epoch once the requested log and evaluation are done. With `is_late`, end it without waiting for them."""
        self._awaited.discard(came)
        if is_late:
            self._awaited.clear()
        if self._epoch_is_over and not self._awaited and self.hosted.driver.epoch_is_open:
            self.hosted.driver.finish_epoch()
        self._obey(control)

    # A training iteration

    def _training_step(self, method: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        driver = self.hosted.driver
        while driver.mode not in ("train", None):  # an evaluation raised, and user code caught the error
            driver.finish_pass(complete=False)
        driver.start_iteration(inputs)
        run, kept = driver.run, []
        hook = model.register_forward_hook(lambda *call: kept.append(call[-1])) if self._keeps_outputs else None
        self._computed, self._is_stepping = None, True
        try:
            result = method(model, inputs, *args, **kwargs)
        finally:
            self._is_stepping = False
            if hook is not None:
                hook.remove()
        run.loss = loss = self._undivided(result)
        run.outputs = kept[-1] if kept else None
        run.targets = _targets(inputs)
        self._computed = None
        kept.clear()
        run.log("loss", loss)
        driver.fire("on_backward_end")
        return result

    def _compute_loss(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        if self._is_stepping:
            loss = (result[0] if isinstance(result, tuple) else result).detach()
            self._computed = loss, kwargs.get("num_items_in_batch") is not None
        return result

    def _undivided(self, reported: Any) -> Any:
        """Return the batch's mean loss. The loss that the trainer reports is divided by the number of batches per step.

        If the model receives the number of items in the whole step, it divides the sum of the batch's losses by this number.
        In this case, return the model's loss multiplied by the number of batches per step.
        """
        trainer = self._trainer
        batches = getattr(trainer, "current_gradient_accumulation_steps", trainer.args.gradient_accumulation_steps)
        if self._computed is None:  # a custom training_step did not call compute_loss
            return reported * batches
        loss, knows_items = self._computed
        is_share = getattr(trainer, "loss_is_scaled_for_ga", None)
        if is_share is None:
            is_share = knows_items and (trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)
        loss = loss.mean() if loss.ndim else loss
        return loss * batches if is_share and batches > 1 else loss

    @guarded
    def begin_step(self) -> None:
        self.hosted.driver.start_step()

    @guarded
    def end_step(self) -> None:
        if not self._trainer.accelerator.optimizer_step_was_skipped:
            self.hosted.driver.finish_step()
        self._rates.keep_changes()

    @guarded
    def end_iteration(self, control: Any, *, stepped: bool) -> None:
        if stepped:
            self._rates.remember()
        if self.hosted.driver.in_iteration:
            self.hosted.driver.finish_iteration()
        self._obey(control)

    # An evaluation

    def _evaluate(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Wrap `trainer.evaluate`. With several datasets, `trainer.evaluate` calls this method again for each dataset."""
        self._evaluations += 1
        try:
            result = method(*args, **kwargs)
        finally:
            self._evaluations -= 1
        if not self._evaluations:
            self._settle(self._trainer.control, "evaluation")
        return result

    def _evaluation_loop(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a validation or prediction pass. Outside training, only the points of this pass fire."""
        if self.hosted.is_running:
            return self._evaluated(method, *args, **kwargs)
        self.hosted.start(run_points=False, model=self._trainer.model, device=self._trainer.args.device)
        try:
            self._wrap("prediction_step")
            output = self._evaluated(method, *args, **kwargs)
        except BaseException as error:
            self.hosted.fail(error)
            raise
        self.hosted.finish()
        return output

    def _evaluated(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(method).bind(*args, **kwargs).arguments
        mode: Mode = "pred" if given["description"] == "Prediction" else "val"
        theirs, driver = given.get("metric_key_prefix", "eval"), self.hosted.driver
        self._prefix = ours = _prefix(theirs, mode)
        driver.start_pass(mode, total=length_of(given["dataloader"]), loader=given["dataloader"])
        output = method(*args, **kwargs)
        values = {name.removeprefix(f"{theirs}_"): value for name, value in output.metrics.items()}
        values.pop("model_preparation_time", None)
        driver.finish_pass({f"{ours}_{name}": value for name, value in values.items() if isinstance(value, int | float)})
        return output

    def _prediction_step(self, method: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        driver = self.hosted.driver
        if driver.mode not in ("val", "pred"):  # user code called this method outside an evaluation
            return method(model, inputs, *args, **kwargs)
        driver.start_iteration(inputs)
        result = method(model, inputs, *args, **kwargs)
        driver.run.loss, driver.run.outputs, _ = result
        driver.run.targets = _targets(inputs)
        # With several ranks, the trainer's mean over all ranks is used.
        is_whole = driver.mode == "val" and driver.run.world_size == 1
        loss = result[0].mean() if is_whole and result[0] is not None else None
        driver.finish_iteration(log=None if loss is None else {f"{self._prefix}_loss": loss})
        if driver.wants_end_pass and not driver.wants_stop:
            raise NotUnderHost(f"run.stop_epoch() during an evaluation does not work under {NAME}: it evaluates all batches.")
        return result

    # Logs and checkpoints

    @guarded
    def log(self, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        for name, value in logs.items():
            if isinstance(value, int | float) and name not in OF_THE_TRAINER and not name.startswith("eval_"):
                self.hosted.driver.run.put_scalar(name, value)
        if "loss" in logs and "learning_rate" in logs:
            self._last_logged = state.global_step
            self._settle(control, "log")

    def _save_model(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Write the callbacks' state right after the trainer has written the weights of a checkpoint.

        The trainer writes trainer_state.json last. If the process is killed before that, the trainer cannot resume from this
        checkpoint. If it is killed afterwards, the checkpoint already contains the callbacks' state.
        """
        result = method(*args, **kwargs)
        trainer = self._trainer
        folder = inspect.signature(method).bind(*args, **kwargs).arguments.get("output_dir")
        if folder is not None and Path(folder).name == f"checkpoint-{trainer.state.global_step}":
            self._write_state(trainer.state, trainer.control, Path(folder))
        return result

    @guarded
    def save(self, args: Any, state: Any, control: Any) -> None:
        """Write the callbacks' state if a custom trainer has saved a checkpoint without calling save_model."""
        if self._saved_at != state.global_step:
            self._write_state(state, control, _folder(args, state))

    @guarded
    def _write_state(self, state: Any, control: Any, folder: Path) -> None:
        self._settle(control, is_late=True)
        if state.is_world_process_zero and folder.is_dir():
            self.hosted.write_state(folder / self._state_file)
            self._saved_at = state.global_step


def _targets(inputs: Any) -> Any:
    return inputs.get("labels") if isinstance(inputs, Mapping) else None


def _prefix(theirs: str, mode: Mode) -> str:
    """Return hookpoint's prefix for the trainer's metric prefix.

    `eval` becomes `val`, `eval_x` becomes `val_x`, and any other prefix `x` becomes `val_x`. In prediction,
    the result is always `pred`.
    """
    if mode == "pred":
        return mode
    return f"val{theirs.removeprefix('eval')}" if theirs == "eval" or theirs.startswith("eval_") else f"val_{theirs}"


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir, f"checkpoint-{state.global_step}")


class Listener:
    """The methods that the trainer calls. A subclass of this class and of TrainerCallback is a transformers callback."""

    def __init__(self, adapter: TransformersAdapter) -> None:
        super().__init__()
        self._adapter = adapter

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._adapter.begin(args, state, control, objects)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._adapter.begin_epoch(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._adapter.end_epoch(state, control)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._adapter.begin_step()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._adapter.end_step()

    def on_substep_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._adapter.end_iteration(control, stepped=False)

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._adapter.end_iteration(control, stepped=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **objects: Any) -> None:
        self._adapter.log(state, control, logs)

    def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._adapter.save(args, state, control)
