"""Runner: train, validate and predict without writing a loop. `fit` is built on `Loop`."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, TypeVar

import torch

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.main_callback import MainCallback, overrides
from hookpoint.core.callback.on import on
from hookpoint.core.checkpoint.plain_names import COMPILED
from hookpoint.core.checkpoint.stateful import OBJECTS
from hookpoint.core.checkpoint.store import Resume
from hookpoint.core.control.control import Control
from hookpoint.core.control.controlled_loop import ControlledLoop
from hookpoint.core.data.array_batches import AUTO, BatchSize
from hookpoint.core.errors import OutsideRun
from hookpoint.core.log.metric_objects import by_name
from hookpoint.core.logger import logger
from hookpoint.core.loop.batches import batches_over
from hookpoint.core.loop.evaluation import abort_on_error, evaluate
from hookpoint.core.loop.loop import Loop
from hookpoint.core.loop.options import LoopOptions
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run, set_stepper
from hookpoint.core.schedule.armed_schedule import ArmedSchedule
from hookpoint.core.schedule.when import Every, When, armed_with_text
from hookpoint.engine import _checks
from hookpoint.engine._metric_names_of_fit import names_of_fit
from hookpoint.engine._metric_set import MetricSet
from hookpoint.engine._strict_sync import StrictSync
from hookpoint.engine.checkpoint_options import checkpoint_options
from hookpoint.engine.data.as_loader import as_loader, loaders_of_fit, move
from hookpoint.engine.data.hooked_loader import settings_of
from hookpoint.engine.data.rng import deterministic_algorithms, rng_kept, seed_all, separate_rng
from hookpoint.engine.device_floats import device_floats
from hookpoint.engine.fused.fused_step import FusedStep
from hookpoint.engine.step.distributed_step import distribution
from hookpoint.engine.step.forward import FunctionMain
from hookpoint.engine.step.modules import (
    check_optimizer,
    choose_device,
    evaluating,
    load_weights,
    modules_of,
    training,
    unwrapped,
)
from hookpoint.engine.step.optimizer_values import learning_rate
from hookpoint.engine.step.step_requests import is_computed
from hookpoint.engine.step.torch_stepper import Precision, check_step_options
from hookpoint.parallel.strategy.strategy import Strategy

Function = TypeVar("Function", bound=Callable[..., Any])
END = object()


class Runner:
    """Train, validate and predict with a PyTorch model, without the default callbacks.

    `hookpoint.Runner` adds the default callbacks. Its docstring describes the options.
    """

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
        max_crashes: int | None = 5,
        on_nonfinite: Literal["raise", "warn"] = "raise",
        strict_sync: bool = False,
        samples: Callable[[Any], int] | None = None,
        config: Any = None,
        resume: Resume = "auto",
        state: Mapping[str, Any] | None = None,
        compile: bool | Mapping[str, Any] = False,
        cuda_graph: bool | Literal["auto"] = False,
        strategy: Strategy | Literal["auto"] = "auto",
        allow_world_change: bool = False,
        checkpoint_key: str | PathLike[str] | None = None,
        hang_report_seconds: float | None = 60.0,
        data_timeout_seconds: float | None = None,
        control: bool = True,
    ) -> None:
        check_step_options(precision, accumulate, clip_grad_norm, lr_scheduler_on)
        _checks.check_instances(model=model, optimizer=optimizer, criterion=criterion, lr_scheduler=lr_scheduler)
        self.model, self.optimizer, self.criterion, self.lr_scheduler = model, optimizer, criterion, lr_scheduler
        self._distribution = distribution(strategy)
        self._distribution.check_precision(precision)
        self.device = choose_device(model, device)
        self._distribution.place(model, self.device)
        check_optimizer(model, optimizer)
        if init_weights is not None:
            load_weights(model, init_weights)
        self._steps_lr_with_optimizer = lr_scheduler_on == "step"
        self._step_options: dict[str, Any] = {"precision": precision, "accumulate": accumulate}
        self._step_options |= {"clip_grad_norm": clip_grad_norm, "lr_metric": lr_metric}
        self._seed, self._deterministic = seed, deterministic
        self._callbacks = self._completed(callbacks, extra_callbacks, monitors)
        self._main = FunctionMain(main) if main is not None and not isinstance(main, MainCallback) else main
        self._metrics = by_name(metrics)
        self._internal: list[Callback] = [*self._distribution.callbacks]
        self._internal += [MetricSet(self._metrics, copies=bool(cuda_graph))] if self._metrics else []
        self._internal += [StrictSync()] if strict_sync else []
        self._options = LoopOptions(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            lr_scheduler=lr_scheduler,
            device=self.device,
            workdir=workdir,
            name=name or (type(getattr(model, COMPILED, model)).__name__ if modules_of(model) else "run"),
            log_every=log_every,
            max_retries=max_retries,
            max_crashes=max_crashes,
            samples=samples,
            on_nonfinite=on_nonfinite,
            config=config,
            resume=resume,
            hang_report_seconds=hang_report_seconds,
            data_timeout_seconds=data_timeout_seconds,
            control=self._control(workdir, control=control),
            floats=device_floats,
            **self._distribution.loop_options,
            **checkpoint_options(
                *(workdir, model, optimizer, init_weights),
                seed=seed,
                allow_world_change=allow_world_change,
                checkpoint_key=checkpoint_key,
                strategy=self._distribution.strategy,
                precision=precision,
                accumulate=accumulate,
            ),
        )
        self._state = dict(state or {})
        self._run: Run | None = None
        self._has_weights, self._loss_is_finite = False, True  # _has_weights is set in fit and when weights are loaded
        main_callback = self._make_loop().hooks.main  # detects mistakes in the callbacks now, not in fit
        _checks.check_schedulers(lr_scheduler, optimizer, main_callback)
        self._fused_step = FusedStep(
            *(compile, cuda_graph),
            device=self.device,
            optimizer=optimizer,
            precision=precision,
            strategy=self._distribution.strategy,
            main=main_callback,
        )
        self._options = replace(self._options, prepare=self._fused_step.mover())

    def _completed(
        self, callbacks: Iterable[Any], extra_callbacks: Iterable[Any] | None, monitors: Iterable[Any] | None
    ) -> list[Any]:
        """Return all callbacks for a run. The public Runner replaces None with the default callbacks and monitors."""
        return [*callbacks, *(extra_callbacks or ()), *(monitors or ())]

    def _control(self, workdir: Any, *, control: bool) -> Callable[[ControlledLoop], Control] | None:
        """Return a function that creates the live control for a fit, or None. The public Runner overrides this method."""
        return None

    def on(self, point: str, **options: Any) -> Callable[[Function], Function]:
        """Register a function as a callback: `@runner.on("on_epoch_end")`."""

        def decorate(function: Function) -> Function:
            on(point, **options)(function)
            self._make_loop([function])
            self._callbacks.append(function)
            return function

        return decorate

    # fit, validate, predict

    def fit(
        self,
        train: Any,
        val: Any = None,
        *,
        epochs: int,
        max_steps: int | None = None,
        validate_every: When | None = None,
        batch_size: BatchSize = AUTO,
    ) -> Run:
        """Train the model and return the run.

            train: A DataLoader or an iterable of batches. With `batch_size`, also a dataset or a tuple of tensors or arrays.
                Tuples and datasets are shuffled.
            val: Validation data, in the same forms as `train`. It is not shuffled.
            epochs: Total number of epochs, including those done before a resume.
            max_steps: Stop after this many optimizer steps, even if not all epochs are done.
            validate_every: A schedule for validation, such as `Every(steps=500)`. Defaults to the end of each epoch.
            batch_size: Number of samples per batch on each rank. None means that the dataset's items are already batches.

        With a workdir, `fit` resumes from the newest valid checkpoint by default. The Runner's `resume` argument changes this.
        """
        _checks.check_parts(self, self._options)
        _checks.check_counts(epochs=epochs, max_steps=0 if max_steps is None else max_steps)
        train, val = loaders_of_fit(train, val, batch_size)
        _checks.check_validation(validate_every, val)
        schedule = armed_with_text(validate_every if validate_every is not None else Every(epochs=1))
        inside = [self._validation(val, schedule)] if validate_every is not None and "iter" in validate_every.moments() else []
        if self._seed is not None:
            seed_all(self._seed)

        def begin(run: Run) -> None:
            nonlocal train
            train = self._distribution.begin_fit(run, train, self._seed)
            if not overrides(run.hooks.main, "on_iter_backward"):
                _checks.check_steps(self.optimizer)
            run.train_loader, run.val_loader, run.max_epochs = train, val, epochs
            schedule.start(machine_of(run).clocks)

        state = {**self._state, "fit/validation": schedule, **self._distribution.state, **settings_of(train, val)}
        passed = {name: getattr(self, name) for name in OBJECTS}
        passed.update(metrics=self._metrics, callbacks=self._callbacks, train=train, val=val)
        names = names_of_fit(passed, self._step_options["lr_metric"], lr_each_step=self._steps_lr_with_optimizer)
        with (
            self._running(inside, begin, state=state, names=names) as run,
            training(self.model),
            self._stepper.training(run),
            deterministic_algorithms(self._deterministic),
        ):
            machine = machine_of(run)
            if max_steps is not None and run.step >= max_steps:
                _checks.stop_at(run, max_steps, before=True)
            for _ in run.epochs(run.max_epochs):
                self._train_epoch(run, train, max_steps)
                is_over = max_steps is not None and run.step >= max_steps
                if not machine.scopes.cut_short or not machine.verdicts.stop:
                    if val is not None and schedule.take(run, "epoch"):
                        evaluate(machine, val)
                    if not self._steps_lr_with_optimizer:
                        run.fire("on_lr_adjust")
                if is_over:
                    _checks.stop_at(run, max_steps)
            _checks.warn_if_never_validated(run, validate_every, has_fired=schedule.has_fired)
        return run

    def validate(self, data: Any, *, batch_size: BatchSize = AUTO, prefix: str = "val") -> dict[str, float]:
        """Compute the loss and the metrics on data. Return them as a dict with keys such as `val_loss`.

        With `prefix="test"`, the keys are `test_loss` and so on. `data` and `batch_size` work as in `fit`.

        If this Runner has not trained yet, the first call loads the weights that `resume` selects and prints their path. By
        default, it loads the newest valid checkpoint in the workdir. It does not lock the workdir, so you can evaluate a run in
        progress. A call during a fit affects neither the training nor its random numbers.
        """
        loader = as_loader(data, batch_size, shuffle=False, reader="validate")
        results = _checks.check_prefix(prefix)
        if self._run is not None:
            return _checks.measured(self._run, results(self._run.evaluate(loader)))
        with self._running() as run:
            options: dict[str, Any] = {} if prefix == "val" else {"is_side": True, "results": results}
            return _checks.measured(run, evaluate(machine_of(run), loader, **options))

    def predict(self, data: Any, *, batch_size: BatchSize = AUTO) -> list[Any]:
        """Return a list with the outputs of each batch, on the CPU. Weights are loaded as in `validate`.

        A call during a fit affects neither the training nor its random numbers.
        """
        loader, host = as_loader(data, batch_size, shuffle=False, reader="predict"), torch.device("cpu")
        with nullcontext() if self._run is None else rng_kept():
            return [move(outputs, host, waits=True) for outputs in self._predictions(loader, at_once=True)]

    def predict_iter(self, data: Any, *, batch_size: BatchSize = AUTO) -> Iterator[Any]:
        """Yield each batch's outputs, on the device, as soon as they are computed. Otherwise, this works like `predict`."""
        loader = as_loader(data, batch_size, shuffle=False, reader="predict")
        return self._predictions(loader) if self._run is None else separate_rng(self._predictions(loader))

    def _predictions(self, loader: Iterable[Any], *, at_once: bool = False) -> Generator[Any, None, None]:
        """Yield the outputs of each batch. With `at_once`, the model also stays in eval mode between batches."""
        with nullcontext(self._run) if self._run is not None else self._running() as run:
            forward = self._stepper.forward_of(run.hooks, "pred")
            batches = batches_over(machine_of(run), loader, "pred", is_side=True)
            if at_once:
                with abort_on_error(batches), evaluating(self.model):
                    for batch in batches:
                        del batch
                        if is_computed(forward, run):
                            yield run.outputs
                return
            while True:
                with abort_on_error(batches), evaluating(self.model):
                    if next(batches, END) is END:
                        return
                    counts = is_computed(forward, run)
                if counts:
                    try:
                        yield run.outputs
                    except GeneratorExit:  # the caller stopped iterating, which is not an error
                        batches.close()
                        return

    # One epoch, one iteration

    def _train_epoch(self, run: Run, train: Iterable[Any], max_steps: int | None) -> None:
        self._distribution.begin_epoch(train, run.epoch)
        machine, first_step = machine_of(run), run.step + 1
        batches = batches_over(machine, train, "train")
        train_step = self._distribution.wrap_step(self._stepper.training_step(run), self._stepper)
        for batch in batches:
            del batch  # lets the run free the batch when the iteration ends
            train_step(run)
            if max_steps is not None and run.step >= max_steps:
                if self._stepper.is_last(run):
                    run.stop_epoch(same_on_all_ranks=True)
                else:  # the epoch is not complete; a run with a higher max_steps resumes at this batch
                    _checks.stop_at(run, max_steps)
        _checks.check_epoch(run, is_empty=not (batches.pass_.batches_seen or machine.verdicts.has_requests))
        for name, rate in learning_rate(self.optimizer).items():
            run.put_scalar(name, rate)
        loss, was_finite = float(batches.results.get("loss", 0.0)), self._loss_is_finite
        self._loss_is_finite = math.isfinite(loss)
        has_warned = getattr(machine.logbook.loss_check, "has_warned", False)
        if was_finite and not self._loss_is_finite and run.is_chief and not has_warned:
            logger.warning("the training loss of epoch %d (steps %d to %d) is %s", run.epoch, first_step, run.step, loss)

    # Around a run

    @contextmanager
    def _running(self, inside: Sequence[Any] = (), begin: Callable[[Run], None] | None = None, **given: Any) -> Iterator[Run]:
        """Open a loop inside a `with` block. A fit passes `begin`, which is called before the run's first point fires."""
        if self._run is not None:
            raise OutsideRun("this Runner is already running.", use="validate or predict, or a second Runner")

        def prepare(run: Run) -> None:
            self._run, self._loss_is_finite = run, True
            self._prepare(run)
            if begin is not None:
                begin(run)
            elif not self._has_weights:
                from hookpoint.engine._evaluated_weights import load_evaluated_weights

                parts = {**self._state, "model": unwrapped(self.model), "criterion": self.criterion}
                load_evaluated_weights(run, parts, self._options.workdir, self._options.resume)

        try:
            with self._make_loop(inside, begin=prepare, run_points=begin is not None, **given) as run:
                self._has_weights = True
                self._stepper.count_steps(run)
                yield run
        finally:
            self._run = None

    def _make_loop(self, inside: Sequence[Any] = (), **given: Any) -> Loop:
        mains = [self._main] if self._main is not None else []
        # Validation in the middle of an epoch (`inside`) runs before the user's callbacks, which may read its metrics.
        callbacks = [*self._internal, *mains, *inside, *self._callbacks]
        options = replace(self._options, **given)
        loop = Loop(callbacks, options)
        return loop if loop.hooks.main is not None else Loop([MainCallback(), *callbacks], options)

    def _prepare(self, run: Run) -> None:
        hooks, options = run.hooks, {**self._step_options, "distribution": self._distribution}
        options["after_step"] = (lambda run: run.fire("on_lr_adjust")) if self._steps_lr_with_optimizer else None
        self._distribution.begin_run(run)
        forward = self._distribution.forward(self.model, self.criterion)
        self._stepper = self._fused_step.stepper(forward, self.model, hooks, **options)
        self._stepper.begin_run(run)
        set_stepper(run, self._stepper)
        run.at_log_step(lambda values: learning_rate(self.optimizer))

    def _validation(self, val: Iterable[Any], schedule: ArmedSchedule) -> Callable[[Run], None]:
        @on("on_iter_end")
        def validation(run: Run) -> None:
            if run.mode == "train" and schedule.take(run, "iter"):
                evaluate(machine_of(run), val)

        validation.is_internal = True  # type: ignore[attr-defined]
        return validation
