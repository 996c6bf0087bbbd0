"""The adapter for PyTorch-Ignite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from math import prod
from typing import Any, Unpack

from hookpoint.adapters._attachment import Attachment
from hookpoint.adapters._hosted_run import NO_SKIPS, UNAVAILABLE, HostedRun, Options, guarded
from hookpoint.core.errors import BadArgument
from hookpoint.core.logger import logger
from hookpoint.core.loop.host import Host
from hookpoint.core.run.run_loop import Mode

NAME = "ignite"
HOST = Host(
    NAME,
    {
        **UNAVAILABLE,
        **NO_SKIPS,
        "on_backward_begin": "the backward pass is inside the engine's function",
        "on_backward_end": "the backward pass is inside the engine's function",
        "save": "ignite writes its own checkpoints; use ignite.handlers.Checkpoint",
    },
)
OutputTransform = Callable[[Any], Any]


def ignite(
    trainer: Any,
    callbacks: Any,
    *,
    model: Any = None,
    optimizer: Any = None,
    evaluators: Mapping[str, Any] | None = None,
    output_transform: OutputTransform | None = None,
    **options: Unpack[Options],
) -> IgniteAdapter:
    """Attach hookpoint's callbacks to an ignite training engine. They run in every `trainer.run()` until `detach()`.

    The adapter has `state_dict` and `load_state_dict`: include it in the `to_save` of `ignite.handlers.Checkpoint`.

    model: The model, for callbacks that need it.
    optimizer: The optimizer, to count its steps. Without one, each iteration counts as a step.
    evaluators: Mapping from names to validation engines. A metric `x` of the engine named `"val"` is called `val_x`. A metric
        `x` of an engine with any other name is called `val_<name>_x`, or `<name>_x` if the name starts with `val_`. The engine
        named `"pred"` runs prediction passes, and its metric `x` is called `pred_x`.
    output_transform: Function that returns the loss from the trainer's output. By default, the loss is the output itself if it
        is a number, or its item "loss".

    options: Options of `hookpoint.Loop`: workdir, name, extra_callbacks, monitors, log_every, samples, config, state,
        wait_seconds, control.
    """
    for engine in (trainer, *(evaluators or {}).values()):
        if not callable(getattr(engine, "add_event_handler", None)):
            raise BadArgument(
                f"adapters.ignite: {type(engine).__name__} is not an ignite Engine: it has no add_event_handler()."
            )
    hosted = HostedRun(callbacks, HOST, options)
    return IgniteAdapter(trainer, hosted, model, optimizer, dict(evaluators or {}), output_transform or _loss_of)


class IgniteAdapter(Attachment):
    """Callbacks attached to an engine. `detach()`, or the end of a `with` statement, removes them."""

    def __init__(
        self, trainer: Any, hosted: HostedRun, model: Any, optimizer: Any, evaluators: dict[str, Any], loss_of: OutputTransform
    ) -> None:
        super().__init__(hosted)
        self._trainer, self._model, self._optimizer, self._loss_of = trainer, model, optimizer, loss_of
        self._events: Any = import_module("ignite.engine").Events
        self._state: dict[str, Any] = {}  # the state at the end of the last run, or from a checkpoint
        self._was_loaded = self._is_interrupted = self._is_training = False
        self._handlers = ExitStack()
        self.wrap_entry(trainer, "run", self._run)
        for name, evaluator in evaluators.items():
            self.wrap_entry(evaluator, "run", partial(self._evaluate, name, evaluator))

    # State, for ignite.handlers.Checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Return the callbacks' state, encoded by hookpoint. Between runs, this is the state at the end of the last run."""
        if self.hosted.is_running:
            self._catch_up()
            driver = self.hosted.driver
            self._state = {"state": self.hosted.state(), "ends_epoch": driver.epoch_is_open and driver.mode is None}
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Store a state. The callbacks load it when the next run starts."""
        self._state, self._was_loaded = dict(state), bool(state)

    # The run

    def _run(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._is_interrupted:
            self._add_handlers()
        self._is_interrupted, self._is_training = False, True
        try:
            result = method(*args, **kwargs)
        except BaseException as error:
            self._handlers.pop_all().close()
            self.hosted.fail(error)
            raise
        finally:
            self._is_training = False
        if not self._is_interrupted:  # after an interrupt, the next call to run() continues the run
            self._handlers.pop_all().close()
            if self.hosted.is_running:
                self.state_dict()
                self.hosted.finish()
        return result

    def _add_handlers(self) -> None:
        """Add the handlers when training starts, so that they run after the user's handlers, which may run evaluations."""
        events = self._events
        for event, handler in {
            events.STARTED: self._begin,
            events.EPOCH_STARTED: self._begin_epoch,
            events.GET_BATCH_STARTED: self._before_batch,
            events.ITERATION_STARTED: self._begin_iteration,
            events.ITERATION_COMPLETED: self._end_iteration,
            events.EPOCH_COMPLETED: self._end_epoch,
            events.INTERRUPT: self._interrupt,
        }.items():
            self._handlers.callback(self._trainer.add_event_handler(event, self._in_run(handler)).remove)

    def _in_run(self, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a handler that does nothing after the run has failed. If user code catches the error, the engine continues."""

        def call(engine: Any) -> None:
            if self.hosted.is_running or engine.last_event_name == self._events.STARTED:
                handler(engine)

        return call

    @guarded
    def _begin(self, engine: Any) -> None:
        resumes = self._was_loaded or engine.state.iteration > 0
        state = self._state if resumes else {}
        self._was_loaded = False
        step = engine.state.iteration if resumes and not state else 0
        if step:
            text = "ignite starts at iteration %d without the state of hookpoint's callbacks: they start from scratch"
            logger.warning(f"{text}. Include the adapter in to_save and to_load of ignite's Checkpoint", step)
        counts = (
            {"epoch": engine.state.epoch, "epochs_done": engine.state.epoch, "step": step, "iteration": step} if step else {}
        )
        self.hosted.start(
            state=state.get("state"),
            clocks=counts,
            epochs=engine.state.max_epochs,
            model=self._model,
            optimizer=self._optimizer,
        )
        first = next(iter(self._optimizer.values())) if isinstance(self._optimizer, Mapping) else self._optimizer
        if first is not None:
            self.hosted.undo(first.register_step_pre_hook(self._before_step).remove)
            self.hosted.undo(first.register_step_post_hook(self._after_step).remove)
        if state.get("ends_epoch"):  # a handler that ran before ours saved this state at the end of an epoch
            self.hosted.driver.start_epoch()
            self.hosted.driver.finish_epoch()
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self.hosted.driver.wants_stop:
            self._trainer.terminate()

    def _interrupt(self, engine: Any) -> None:
        self._is_interrupted = True

    # Epochs

    @guarded
    def _begin_epoch(self, engine: Any) -> None:
        driver = self.hosted.driver
        if driver.epoch_is_open:  # ended by terminate_epoch(skip_epoch_completed=True)
            self._end_training()
            driver.finish_epoch()
        driver.start_epoch()
        if not driver.wants_stop:
            driver.start_pass("train", total=engine.state.epoch_length, loader=engine.state.dataloader)
        self._stop_if_asked()

    @guarded
    def _before_batch(self, engine: Any) -> None:
        """End the epoch's training if a callback requested this at a begin point.

        ignite cannot end an epoch at EPOCH_STARTED.
        """
        driver = self.hosted.driver
        if driver.mode == "train" and driver.wants_end_pass and not driver.wants_stop:
            engine.terminate_epoch()

    @guarded
    def _end_epoch(self, engine: Any) -> None:
        self._end_training()
        self.hosted.driver.finish_epoch()
        self._stop_if_asked()

    def _end_training(self) -> None:
        driver = self.hosted.driver
        while driver.mode is not None:
            is_train = driver.mode == "train"
            driver.finish_pass(
                _scalars(self._trainer.state.metrics) if is_train else None, complete=None if is_train else False
            )

    # A training iteration

    @guarded
    def _begin_iteration(self, engine: Any) -> None:
        driver = self.hosted.driver
        while driver.mode not in ("train", None):  # an evaluation raised, and user code caught the error
            driver.finish_pass(complete=False)
        driver.start_iteration(engine.state.batch)

    def _before_step(self, *args: Any) -> None:
        if self.hosted.driver.mode == "train":
            self.hosted.driver.start_step()

    def _after_step(self, *args: Any) -> None:
        if self.hosted.driver.mode == "train":
            self.hosted.driver.finish_step()

    @guarded
    def _end_iteration(self, engine: Any) -> None:
        driver = self.hosted.driver
        if driver.mode != "train" or not driver.in_iteration:  # the iteration has already ended, before an evaluation or a save
            return
        if self._optimizer is None:
            driver.start_step()
            driver.finish_step()
        if engine.state.metrics:
            driver.show(_scalars(engine.state.metrics))
        driver.finish_iteration(outputs=engine.state.output, loss=self._loss_of(engine.state.output))
        if driver.wants_stop:
            engine.terminate()
        elif driver.wants_end_pass:
            engine.terminate_epoch()

    def _catch_up(self) -> None:
        """End the run's iteration or training pass if ignite's engine has already ended the iteration or the epoch.

        This is needed if a user's handler evaluates or saves before our handler for the same event has run.
        """
        event, trainer = self._trainer.last_event_name, self._trainer
        if event in (self._events.ITERATION_COMPLETED, self._events.EPOCH_COMPLETED):
            self._end_iteration(trainer)
        if event == self._events.EPOCH_COMPLETED and self.hosted.driver.mode == "train":
            self._end_training()

    # An evaluation

    def _evaluate(self, name: str, engine: Any, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a validation or prediction pass. Outside training, only the points of this pass fire."""
        if self._is_training:
            # The evaluation is not part of the run: it happens before the run begins or after it ends.
            if not self.hosted.is_running or self._trainer.last_event_name == self._events.COMPLETED:
                return method(*args, **kwargs)
            self._catch_up()
            with self._watched(name, engine):
                result = method(*args, **kwargs)
            self._stop_if_asked()
            return result
        self.hosted.start(run_points=False, model=self._model)
        try:
            with self._watched(name, engine):
                result = method(*args, **kwargs)
        except BaseException as error:
            self.hosted.fail(error)
            raise
        self.hosted.finish()
        return result

    @contextmanager
    def _watched(self, name: str, engine: Any) -> Iterator[None]:
        events, driver = self._events, self.hosted.driver
        mode: Mode = "pred" if name == "pred" else "val"

        def begin_pass(engine: Any) -> None:
            driver.start_pass(mode, total=engine.state.epoch_length, loader=engine.state.dataloader)

        def begin(engine: Any) -> None:
            driver.start_iteration(engine.state.batch)

        def end(engine: Any) -> None:
            driver.finish_iteration(outputs=engine.state.output)
            if driver.wants_end_pass:
                engine.terminate_epoch()

        with ExitStack() as handlers:
            for event, handler in (
                (events.STARTED, begin_pass),
                (events.ITERATION_STARTED, begin),
                (events.ITERATION_COMPLETED, end),
            ):
                handlers.callback(engine.add_event_handler(event, handler).remove)
            yield
        prefix = name if name in ("val", "pred") or name.startswith("val_") else f"val_{name}"
        values = {f"{prefix}_{key}": value for key, value in _scalars(engine.state.metrics).items()}
        if driver.mode == mode:
            driver.finish_pass(values)


def _loss_of(output: Any) -> Any:
    """Return the loss from a training engine's output, or None if the output contains no loss."""
    loss = output.get("loss") if isinstance(output, Mapping) else output
    return loss if _is_scalar(loss) else None


def _scalars(metrics: Mapping[Any, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if isinstance(name, str) and _is_scalar(value)}


def _is_scalar(value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return False
    return isinstance(value, int | float) or (hasattr(value, "shape") and prod(value.shape) == 1)
