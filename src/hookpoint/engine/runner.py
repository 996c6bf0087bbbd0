"""Runner: fit, validate and predict for people who want no loop of their own. `fit` is written on `Loop`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import torch

from hookpoint.core.callback import Callback
from hookpoint.core.dispatch import Dispatch
from hookpoint.core.errors import BadLoop, OutsideRun, text
from hookpoint.core.hooks import Hooks
from hookpoint.core.iteration import Iteration
from hookpoint.core.loop import Loop
from hookpoint.core.main_callback import MainCallback
from hookpoint.core.on import on
from hookpoint.core.run import Run
from hookpoint.core.when import Every, When
from hookpoint.engine.data import as_loader, move
from hookpoint.engine.device import check_optimizer, choose_device, place_model
from hookpoint.engine.forward import Forward
from hookpoint.engine.function_main import FunctionMain
from hookpoint.engine.metric_set import MetricSet
from hookpoint.engine.modules import evaluating, modules_of, training
from hookpoint.engine.rng import deterministic_algorithms, rng_kept, seed_all
from hookpoint.engine.stepper import Precision, TorchStepper, check_step_options
from hookpoint.engine.strict_sync import StrictSync
from hookpoint.engine.values import device_floats

Function = TypeVar("Function", bound=Callable[..., Any])


class Runner:
    """The runner without the default callbacks; `hookpoint.Runner` adds them, and its docstring says what the options do."""

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        criterion: Callable[..., Any] | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
        lr_scheduler: Any = None,
        lr_scheduler_on: Literal["epoch", "step"] = "epoch",
        lr_metric: str | None = None,
        callbacks: Iterable[Any] = (),
        extra_callbacks: Iterable[Any] | None = None,
        monitors: Iterable[Any] | None = None,
        main: MainCallback | Callable[[Run], Any] | None = None,
        workdir: Any = None,
        name: str | None = None,
        device: str | torch.device = "auto",
        precision: Precision = "32",
        accumulate: int = 1,
        clip_grad_norm: float | None = None,
        seed: int | None = None,
        deterministic: bool = False,
        init_weights: Mapping[str, Any] | None = None,
        log_every: int = 50,
        max_retries: int = 3,
        strict_sync: bool = False,
    ) -> None:
        check_step_options(precision, accumulate, clip_grad_norm)
        if lr_scheduler_on not in ("epoch", "step"):
            raise BadLoop(text(f"lr_scheduler_on={lr_scheduler_on!r}.", choose="'epoch' or 'step'"))
        self.model, self.optimizer, self.criterion, self.lr_scheduler = model, optimizer, criterion, lr_scheduler
        self.device = choose_device(model, device)
        place_model(model, self.device)
        check_optimizer(model, optimizer)
        if init_weights is not None:
            model.load_state_dict(init_weights)
        self._steps_lr_with_optimizer = lr_scheduler_on == "step"
        self._step_options: dict[str, Any] = {
            "precision": precision,
            "accumulate": accumulate,
            "clip_grad_norm": clip_grad_norm,
            "lr_metric": lr_metric,
        }
        self._needs_own_backward = precision == "fp16" or accumulate > 1 or clip_grad_norm is not None
        self._seed, self._deterministic = seed, deterministic
        self._callbacks = self._completed(callbacks, extra_callbacks, monitors)
        self._main = FunctionMain(main) if main is not None and not isinstance(main, MainCallback) else main
        self._internal: list[Callback] = [MetricSet(metrics)] if metrics else []
        self._internal += [StrictSync()] if strict_sync else []
        self._loop_options = {
            "workdir": workdir,
            "name": name or (type(model).__name__ if modules_of(model) else "run"),
            "log_every": log_every,
            "max_retries": max_retries,
        }
        self._run: Run | None = None
        self._make_loop([])  # finds the mistakes in the callbacks now, not in fit

    def _completed(
        self, callbacks: Iterable[Any], extra_callbacks: Iterable[Any] | None, monitors: Iterable[Any] | None
    ) -> list[Any]:
        """Return all callbacks of a run; here None stands for none, in the public Runner for the defaults."""
        return [*callbacks, *(extra_callbacks or ()), *(monitors or ())]

    def on(self, point: str, **options: Any) -> Callable[[Function], Function]:
        """Add a function as a callback for a point: `@runner.on("on_epoch_end")`."""

        def decorate(function: Function) -> Function:
            self._callbacks.append(on(point, **options)(function))
            return function

        return decorate

    # The three jobs

    def fit(
        self,
        train: Any,
        val: Any = None,
        *,
        epochs: int,
        max_steps: int | None = None,
        validate_every: When | None = None,
        batch_size: int | None = None,
    ) -> Run:
        """Train for so many epochs, or until `max_steps` optimizer steps; validate on `val` when its schedule says so.

        Data is a DataLoader, an iterable of batches, or a tuple of tensors or arrays with `batch_size`. Returns the run.
        """
        if self.optimizer is None:
            raise BadLoop(text("fit needs an optimizer.", give="Runner(model, optimizer, criterion)"))
        train = as_loader(train, batch_size, shuffle=True)
        val = None if val is None else as_loader(val, batch_size if isinstance(val, tuple) else None, shuffle=False)
        schedule = (validate_every if validate_every is not None else Every(epochs=1)).arm()
        inside = [on("on_iter_end", when=validate_every)(self._validation(val))] if _asks_in_epochs(validate_every, val) else []
        if self._seed is not None:
            seed_all(self._seed)
        with self._running(inside) as run, training(self.model), deterministic_algorithms(self._deterministic):
            schedule.start(run._clocks)
            for _ in run.epochs(epochs):
                for batch in run.batches(train):
                    del batch  # the run has it, and lets go of it when the iteration ends
                    self._train_step(run)
                    if max_steps is not None and run.step >= max_steps:
                        run.stop(f"max_steps={max_steps} is reached")
                if run.iteration == 0 and not run._verdicts.stop:
                    raise BadLoop(text("the training data gave no batch.", check="that the loader is not empty"))
                self._log_rates(run)
                if not run._loop.cut_short:
                    if val is not None and schedule.take(run, "epoch"):
                        self._evaluate(run, val)
                    if not self._steps_lr_with_optimizer:
                        run.fire("on_lr_adjust")
        return run

    def validate(self, data: Any, *, batch_size: int | None = None) -> dict[str, float]:
        """Return the metrics of a validation pass under the names they are logged by; during a fit, disturb nothing."""
        loader = as_loader(data, batch_size, shuffle=False)
        if self._run is not None:
            with rng_kept():
                return _floats(self._evaluate(self._run, loader, aside=True))
        with self._running([], run_points=False) as run:
            return _floats(self._evaluate(run, loader))

    def predict(self, data: Any, *, batch_size: int | None = None) -> list[Any]:
        """Return the outputs for each batch, on the host."""
        return [move(outputs, torch.device("cpu")) for outputs in self.predict_iter(data, batch_size=batch_size)]

    def predict_iter(self, data: Any, *, batch_size: int | None = None) -> Iterator[Any]:
        """Yield the outputs for each batch as it is computed, on the device."""
        loader = as_loader(data, batch_size, shuffle=False)
        with ExitStack() as stack:
            run = self._run if self._run is not None else stack.enter_context(self._running([], run_points=False))
            forward = run.hooks.dispatch("on_pred_forward", mode="pred")
            assert forward is not None
            for batch in run.batches(loader, mode="pred"):
                del batch
                with evaluating(self.model):
                    forward(run)
                yield run.outputs

    # One iteration

    def _train_step(self, run: Run) -> None:
        now = run._now
        try:
            self._forward(run)
            self._log_loss(run, now)
            self._backward(run)
        except Exception as error:
            if not self._recovered(run, now, error):
                raise
        if now.asked:
            now.skips_were_read = True

    def _evaluate(self, run: Run, loader: Iterable[Any], *, aside: bool = False) -> Mapping[str, Any]:
        forward = run.hooks.dispatch("on_val_forward", mode="val")
        assert forward is not None
        batches = run._loop.batches(loader, "val", aside=aside)
        with evaluating(self.model):
            for batch in batches:
                del batch
                forward(run)
                self._log_loss(run, run._now)
        return batches.results

    def _log_loss(self, run: Run, now: Iteration) -> None:
        if now.loss is None:
            if run.mode == "train":
                raise BadLoop(text("the forward left no loss.", set="run.loss in on_iter_forward"))
            return
        run._logbook.log("loss", now.loss, now.samples)

    def _recovered(self, run: Run, now: Iteration, error: Exception) -> bool:
        """Ask the callbacks about a step that failed; say whether one of them wants it retried or skipped."""
        error.add_note(f"in the step of batch {now.batch_idx}, {_described(now.batch)} (step {run.step}, rank {run.rank})")
        handle = run.hooks.dispatch("on_iter_error", mode="train")
        if handle is None:
            return False
        run._payload = {"error": error}
        handle(run)
        asked = now.retry or "batch" in now.skipped
        return asked and self._stepper.forget_window(run)

    # Around a run

    @contextmanager
    def _running(self, inside: list[Any], *, run_points: bool = True) -> Iterator[Run]:
        if self._run is not None:
            raise OutsideRun(text("this runner is fitting already.", use="validate or predict, or a second Runner"))
        loop = self._make_loop(inside, run_points=run_points)
        try:
            with loop as run:
                self._run = run
                self._prepare(run)
                yield run
        finally:
            self._run = None

    def _make_loop(self, inside: list[Any], *, run_points: bool = True) -> Loop:
        mains = [self._main] if self._main is not None else []
        callbacks = [*self._internal, *mains, *self._callbacks, *inside]
        options = {
            "model": self.model,
            "optimizer": self.optimizer,
            "criterion": self.criterion,
            "lr_scheduler": self.lr_scheduler,
            "device": self.device,
            "floats": device_floats,
            "prepare": partial(move, device=self.device) if self.device.type != "cpu" else None,
            "run_points": run_points,
            **self._loop_options,
        }
        loop = Loop(callbacks, **options)
        return loop if loop.hooks.main is not None else Loop([MainCallback(), *callbacks], **options)

    def _prepare(self, run: Run) -> None:
        hooks = run.hooks
        after_step = (lambda run: run.fire("on_lr_adjust")) if self._steps_lr_with_optimizer else None
        forward = Forward(self.model, self.criterion)
        self._stepper = TorchStepper(forward, hooks, self.device, after_step=after_step, **self._step_options)
        run._stepper = self._stepper
        self._forward = self._owned(hooks, "on_train_forward", ("on_train_forward", "on_iter_forward"), self._stepper.forward)
        self._backward = self._owned(hooks, "on_iter_backward", ("on_iter_backward",), self._stepper.backward_and_step)
        if self._backward == self._stepper.backward_and_step:
            self._stepper.count_steps(run)
        elif self._needs_own_backward:
            self._backward = partial(self._checked, self._backward)
        run.at_log_step(lambda values: self._rates())

    @staticmethod
    def _owned(hooks: Hooks, point: str, methods: tuple[str, ...], default: Dispatch) -> Dispatch:
        """Return what computes a part of the step: the MainCallback's, or ours at once where it does not override it."""
        if all(getattr(type(hooks.main), method) is getattr(MainCallback, method) for method in methods):
            return default
        call = hooks.dispatch(point, mode="train")
        assert call is not None
        return call

    def _checked(self, backward: Callable[[Run], None], run: Run) -> None:
        """Run an overridden on_iter_backward for the first time, and see that it leaves the step to the runner."""
        backward(run)
        if not self._stepper.backward_was_called:
            raise BadLoop(
                text(
                    "on_iter_backward computes the step itself, which knows nothing of accumulate, clip_grad_norm and fp16.",
                    call="run.backward() and run.optimizer_step() in it",
                )
            )
        self._backward = backward

    def _validation(self, val: Iterable[Any]) -> Callable[[Run], None]:
        def validation(run: Run) -> None:
            if run.mode == "train":
                self._evaluate(run, val)

        return validation

    def _rates(self) -> dict[str, float]:
        groups = getattr(self.optimizer, "param_groups", None) or []
        return {"learning_rate": float(groups[0]["lr"])} if groups and "lr" in groups[0] else {}

    def _log_rates(self, run: Run) -> None:
        for name, rate in self._rates().items():
            run.put_scalar(name, rate)


def _asks_in_epochs(schedule: When | None, val: Any) -> bool:
    return schedule is not None and val is not None and "iter" in schedule.moments()


def _floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _described(batch: Any) -> str:
    """Say what a batch is made of: the shapes of its tensors."""
    if isinstance(batch, torch.Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')}{list(batch.shape)}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{name}: {_described(value)}" for name, value in batch.items()) + "}"
    if isinstance(batch, tuple | list):
        return "(" + ", ".join(map(_described, batch)) + ")"
    return type(batch).__name__
