"""The adapter for Keras 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from hookpoint.adapters._epoch_state import EpochState
from hookpoint.adapters._hosted_run import NO_SKIPS, UNAVAILABLE, ErrorsFromWith, HostedRun, Options, copy_for_tags, guarded
from hookpoint.core.loop.host import Host
from hookpoint.core.run.run_loop import Mode
from hookpoint.storage.checkpoint.layout import safe_name

CANNOT = {**UNAVAILABLE, **NO_SKIPS, "stop_epoch": "it can only stop the whole training run"}
IN_THE_STEP = ("on_backward_begin", "on_backward_end", "on_step_begin", "on_step_end")
STEPS = {"train": "train_step", "val": "test_step", "pred": "predict_step"}


def keras(callbacks: Any, **options: Unpack[Options]) -> Any:
    """Return a Keras callback that runs hookpoint's callbacks: `model.fit(..., callbacks=[keras([...])])`.

    Each call to `model.fit` is a run. Outside `fit`, `evaluate` fires only the points of a validation pass, and `predict` fires
    only the points of a prediction pass. Keras has no event for errors. To have errors reported, call `fit` inside a with
    statement:

        with hookpoint.adapters.keras(callbacks) as adapter:
            model.fit(..., callbacks=[adapter])

    With a `workdir`, the adapter writes the callbacks' state to a file there after each epoch. `model.fit` with
    `initial_epoch=3` resumes from the state that was written after three epochs. This also works if
    `keras.callbacks.BackupAndRestore` sets `initial_epoch`. Savers write `workdir/keras/<tag>.weights.h5`.

    `run.batch`, `run.outputs`, `run.loss` and the points inside a step require the torch backend without `jit_compile`.

    options: Options of `hookpoint.Loop`: workdir, name, extra_callbacks, monitors, log_every, samples, config, state,
        wait_seconds, control.
    """
    try:
        import keras as package  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ImportError("hookpoint.adapters.keras needs Keras 3: pip install keras") from error
    cannot = dict(CANNOT)
    if package.backend.backend() != "torch":
        cannot |= {point: f"its step is compiled with the {package.backend.backend()} backend" for point in IN_THE_STEP}
    if options.get("workdir") is None:
        cannot["save"] = "it needs a folder for its weights; pass workdir="
    kind = type("HookpointCallback", (KerasEvents, package.callbacks.Callback), {})
    return kind(callbacks, Host("Keras", cannot), options)


class KerasEvents(ErrorsFromWith):
    """The methods that Keras calls, and the model and optimizer methods that are wrapped during a run."""

    model: Any
    params: dict[str, Any]

    def __init__(self, callbacks: Any, host: Host, options: Options) -> None:
        super().__init__()
        self._workdir = None if options.get("workdir") is None else Path(options["workdir"] or "")
        self.hosted = HostedRun(callbacks, host, options, save=None if self._workdir is None else self._save)
        self.driver = self.hosted.driver
        self._state = EpochState(self.hosted, self._workdir)
        self._is_inside = False  # whether the points inside a step are available
        self._batches = 0  # batches that the optimizer has seen, for gradient accumulation

    def _save(self, tags: Sequence[str], step: int) -> Path:
        assert self._workdir is not None
        path = self._workdir / "keras" / f"{safe_name(str(tags[0]))}.weights.h5"
        path.parent.mkdir(exist_ok=True)
        self.model.save_weights(path, overwrite=True)
        copy_for_tags(path, tags[1:], ".weights.h5")
        return path

    # The run

    @guarded
    def on_train_begin(self, logs: Any = None) -> None:
        """Do not start the run yet. It starts with the first epoch, whose number shows whether Keras resumes training."""
        self.hosted.abandon()

    def _start(self, **facts: Any) -> None:
        model = self.model
        is_stopped = getattr(model, "stop_training", False)
        self.hosted.start(model=model, optimizer=getattr(model, "optimizer", None), **facts)
        # Another callback has stopped this fit. The flag is not from an earlier fit: Keras clears it when a fit begins.
        if is_stopped:
            model.stop_training = True

    def _start_fit(self, epoch: int) -> None:
        self._is_inside = not getattr(self.model, "jit_compile", False) and "on_step_begin" not in self.driver.host.cannot
        if not self._is_inside:
            self.driver.reject(IN_THE_STEP, "its step is compiled: pass jit_compile=False to model.compile()")
        state, clocks = self._state.after(epoch), None
        if epoch and state is None:
            clocks = {"epoch": epoch, "epochs_done": epoch, "step": int(self.model.optimizer.iterations)}
        settings = [LearningRate(self.model.optimizer)] if hasattr(self.model.optimizer, "learning_rate") else []
        self._start(epochs=self.params.get("epochs"), state=state, clocks=clocks, settings=settings, run_points=True)
        if self._is_inside:
            self._wrap_steps("train", "val")
            self._wrap_optimizer()
        self._batches = _batches_of(self.model.optimizer)

    def _obey(self) -> None:
        if self.driver.wants_stop:
            self.model.stop_training = True

    @guarded
    def on_train_end(self, logs: Any = None) -> None:
        if self.hosted.is_running:
            self.hosted.finish()

    # Training

    @guarded
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self.hosted.is_running:
            self._start_fit(epoch)
        self.driver.start_epoch()
        self.driver.start_pass("train", total=self.params.get("steps"))
        self._obey()

    @guarded
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._is_inside:
            self.driver.start_iteration()
            self._obey()

    @guarded
    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        driver = self.driver
        # Usually, train_step begins the iteration. A custom train_function may not call train_step.
        if not driver.in_iteration:
            driver.start_iteration()
        if not self._is_inside and self._is_step():
            driver.finish_step()
        loss = driver.run.loss if self._is_inside else None
        driver.show({name: value for name, value in (logs or {}).items() if name != "loss" or loss is None})
        driver.finish_iteration(loss=None if loss is None else loss.detach())
        self._obey()

    @guarded
    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self.driver.mode == "train":
            self.driver.finish_pass({name: value for name, value in (logs or {}).items() if not name.startswith("val_")})
        self.driver.finish_epoch()
        self._state.write()
        self._obey()

    # Validation and prediction

    @guarded
    def on_test_begin(self, logs: Any = None) -> None:
        if not self.hosted.is_running:
            self._start_pass_alone("val")
        elif self.driver.mode == "train":
            self.driver.finish_pass(self.model.get_metrics_result())
        self.driver.start_pass("val")

    @guarded
    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begin_unwrapped()

    @guarded
    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.driver.finish_iteration()

    @guarded
    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self.driver.finish_pass(logs)
        if self.driver.epoch_is_open:
            self._obey()
        else:
            self.hosted.finish()

    @guarded
    def on_predict_begin(self, logs: Any = None) -> None:
        self._start_pass_alone("pred")
        self.driver.start_pass("pred")

    @guarded
    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begin_unwrapped()

    @guarded
    def on_predict_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.driver.finish_iteration(outputs=(logs or {}).get("outputs"))

    @guarded
    def on_predict_end(self, logs: Any = None) -> None:
        self.driver.finish_pass()
        self.hosted.finish()

    def _start_pass_alone(self, mode: Mode) -> None:
        self.hosted.abandon()
        self._start(run_points=False)
        self._is_inside = not getattr(self.model, "jit_compile", False) and "on_step_begin" not in self.driver.host.cannot
        if self._is_inside:
            self._wrap_steps(mode)

    def _begin_unwrapped(self) -> None:
        if not self._is_inside:
            self.driver.start_iteration()

    # Inside a step

    def _wrap_steps(self, *modes: Mode) -> None:
        """Begin an iteration when the step receives its batch, because Keras events do not include the batch."""
        model = self.model
        for mode in modes:
            step = getattr(model, STEPS[mode])
            self.hosted.wrap(model, STEPS[mode], partial(self._step, mode, step))
        if "pred" not in modes:
            self.hosted.wrap(model, "compute_loss", partial(self._loss, model.compute_loss))

    @guarded
    def _begin(self, mode: Mode, batch: Any) -> None:
        if self.driver.mode == mode:
            self.driver.start_iteration(batch)
            self._obey()

    def _step(self, mode: Mode, step: Callable[[Any], Any], data: Any) -> Any:
        self._begin(mode, data)
        return step(data)

    def _loss(self, compute_loss: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(*args, **kwargs)
        if self.driver.in_iteration:
            self._note_loss(loss, kwargs["y_pred"] if "y_pred" in kwargs else args[2] if len(args) > 2 else None)
        return loss

    @guarded
    def _note_loss(self, loss: Any, outputs: Any) -> None:
        run = self.driver.run
        run.outputs, run.loss = outputs, loss
        if run.mode == "train":
            self.driver.fire("on_backward_begin")

    def _wrap_optimizer(self) -> None:
        optimizer = self.model.optimizer
        self.hosted.wrap(optimizer, "apply", partial(self._apply, optimizer, optimizer.apply))

    def _apply(self, optimizer: Any, apply: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not (self.driver.in_iteration and self.driver.mode == "train"):
            return apply(*args, **kwargs)
        is_step = self._begin_step()
        may_skip = is_step and hasattr(optimizer, "inner_optimizer")  # loss scaling skips steps with non-finite gradients
        before = int(optimizer.iterations) if may_skip else 0
        result = apply(*args, **kwargs)
        if is_step and not (may_skip and int(optimizer.iterations) == before):
            self._end_step()
        return result

    @guarded
    def _begin_step(self) -> bool:
        self.driver.fire("on_backward_end")
        is_step = self._is_step()
        if is_step:
            self.driver.start_step()
        return is_step

    @guarded
    def _end_step(self) -> None:
        self.driver.finish_step()

    def _is_step(self) -> bool:
        """Count a batch, and return whether the optimizer steps after this batch. Accumulation continues across epochs."""
        self._batches += 1
        every = getattr(self.model.optimizer, "gradient_accumulation_steps", None) or 1
        return bool(self._batches % every == 0)


class LearningRate:
    """Make the learning rate of a Keras optimizer available in `run.hyper`."""

    name = "learning_rate"

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def get_value(self) -> float:
        return float(self._optimizer.learning_rate)

    def set_value(self, value: float) -> None:
        self._optimizer.learning_rate = value


def _batches_of(optimizer: Any) -> int:
    """Return how many batches an optimizer has seen. `optimizer.iterations` counts optimizer steps, not batches."""
    counters = [variable for variable in getattr(optimizer, "variables", ()) if variable.name == "iteration"]
    return int(counters[0]) if counters else 0
