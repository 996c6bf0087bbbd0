"""IgniteEngines: call ignite handlers in a run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hookpoint.adapters.foreign_callbacks._adopted import number_of, values_of
from hookpoint.adapters.foreign_callbacks._run_engine import Calls, run_engine
from hookpoint.core.callback.callback import Callback
from hookpoint.core.run.run import Run


class IgniteEngines(Callback):
    """Two ignite engines whose events the run fires. Attach any ignite handler to `trainer` or `evaluator`.

    `trainer.state` contains the epoch, the iteration, the batch, the loss as `output`, and all metrics. `evaluator.state`
    contains the validation metrics, without the prefix `val_`, and the pair (outputs, targets) as `output`.
    `trainer.terminate()` stops the run, and `trainer.terminate_epoch()` stops the epoch. If a handler has a `state_dict`
    method, its state is kept in the checkpoint.

        engines = hookpoint.adapters.IgniteEngines()
        stopping = EarlyStopping(3, lambda engine: -engine.state.metrics["loss"], engines.trainer)
        engines.evaluator.add_event_handler(Events.COMPLETED, stopping)
        Runner(model, optimizer, criterion, callbacks=[engines]).fit(train, val, epochs=100)
    """

    writes_anything = True

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)
        try:
            self._events = import_module("ignite.engine").Events
        except ImportError as error:
            raise ImportError("hookpoint.adapters.IgniteEngines needs ignite: pip install 'hookpoint[ignite]'") from error
        calls = Calls()
        self.trainer, self.evaluator = run_engine("trainer", calls), run_engine("evaluator", calls)
        self._is_training = False

    # Training

    def on_run_begin(self, run: Run) -> None:
        trainer, state = self.trainer, self.trainer.state
        trainer.should_terminate = trainer.should_terminate_single_epoch = False
        state.epoch = state.iteration = 0
        state.metrics = {}
        self._is_training = True
        if not run.resuming:
            self.on_load(run)

    def on_load(self, run: Run) -> None:
        """Fire the event STARTED. If the run resumes, the state is already restored."""
        self._fire(run, self.trainer, "STARTED")

    def on_epoch_begin(self, run: Run) -> None:
        self._fire(run, self.trainer, "EPOCH_STARTED")

    def on_batch_fetch_begin(self, run: Run) -> None:
        if self._has_another_batch(run):
            self._fire(run, self.trainer, "GET_BATCH_STARTED", run.iteration)

    def on_batch_fetch_end(self, run: Run) -> None:
        if self._has_another_batch(run) and run.batch is not None:
            self.trainer.state.batch = run.batch
            self._fire(run, self.trainer, "GET_BATCH_COMPLETED", run.iteration)

    def _has_another_batch(self, run: Run) -> bool:
        """Return whether this is a training pass that may still have batches."""
        total = run.progress.total if run.progress is not None else None
        return run.mode == "train" and (total is None or run.batch_idx < total)

    def on_train_iter_begin(self, run: Run) -> None:
        state = self.trainer.state
        state.batch, state.output = run.batch, None
        self._fire(run, self.trainer, "ITERATION_STARTED")

    def on_train_iter_end(self, run: Run) -> None:
        loss = run.loss
        self.trainer.state.output = loss.detach() if hasattr(loss, "detach") else loss
        self._fire(run, self.trainer, "ITERATION_COMPLETED")

    def on_epoch_end(self, run: Run) -> None:
        self.trainer.state.metrics.update(values_of(run))
        self._fire(run, self.trainer, "EPOCH_COMPLETED")
        self.trainer.should_terminate_single_epoch = False

    def on_exception(self, run: Run, error: BaseException) -> None:
        if self._is_training:
            self._is_training = False
            self.trainer.fire_exception(error)

    def on_run_end(self, run: Run) -> None:
        if self._is_training and self.trainer.should_terminate != "skip_completed":
            self._fire(run, self.trainer, "COMPLETED")
        self._is_training = False

    # Validation

    def on_val_epoch_begin(self, run: Run) -> None:
        evaluator, state = self.evaluator, self.evaluator.state
        evaluator.should_terminate = evaluator.should_terminate_single_epoch = False
        state.dataloader, state.epoch_length, state.max_epochs = run.val_loader, number_of(run.val_loader), 1
        state.epoch, state.iteration, state.metrics = 0, 0, {}
        self._fire(run, evaluator, "STARTED")
        state.epoch = 1
        self._fire(run, evaluator, "EPOCH_STARTED")

    def on_val_iter_begin(self, run: Run) -> None:
        state = self.evaluator.state
        state.batch, state.output, state.iteration = run.batch, None, run.batch_idx + 1
        self._fire(run, self.evaluator, "ITERATION_STARTED")

    def on_val_iter_end(self, run: Run) -> None:
        self.evaluator.state.output = run.outputs, run.targets
        self._fire(run, self.evaluator, "ITERATION_COMPLETED")

    def on_val_epoch_end(self, run: Run) -> None:
        metrics = {name.removeprefix("val_"): value for name, value in values_of(run).items() if name.startswith("val_")}
        self.evaluator.state.metrics.update(metrics)
        self._fire(run, self.evaluator, "EPOCH_COMPLETED")
        self._fire(run, self.evaluator, "COMPLETED")

    def _fire(self, run: Run, engine: Any, event: str, iteration: int | None = None) -> None:
        if engine is self.trainer:
            state = engine.state
            state.iteration = run.current_iteration if iteration is None else iteration
            state.epoch, state.max_epochs = run.epoch, run.max_epochs
            state.dataloader, state.epoch_length = run.train_loader, number_of(run.train_loader)
        engine.fire_event(getattr(self._events, event))
        self._honour(run)

    def _honour(self, run: Run) -> None:
        """Stop the run or the epoch if a handler has called `terminate` or `terminate_epoch`."""
        trainer, evaluator = self.trainer, self.evaluator
        if trainer.should_terminate and self._is_training and run.stop_reason is None:
            run.stop(trainer.terminated_by)
            trainer.fire_event(self._events.TERMINATE)
        if trainer.should_terminate_single_epoch and run.mode == "train":
            trainer.should_terminate_single_epoch = False
            run.stop_epoch()
            trainer.fire_event(self._events.TERMINATE_SINGLE_EPOCH)
        if evaluator.should_terminate and run.mode == "val":
            evaluator.should_terminate = False
            run.stop_epoch()
            evaluator.fire_event(self._events.TERMINATE)

    def state_dict(self) -> dict[str, Any]:
        return {name: dict(handler.state_dict()) for name, handler in self._stateful().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        stateful = self._stateful()
        for name in stateful.keys() & state.keys():
            stateful[name].load_state_dict(state[name])

    def _stateful(self) -> dict[str, Any]:
        """Return the handlers that have a state, keyed by engine, class and number, such as `trainer/EarlyStopping#1`."""
        found: dict[str, Any] = {}
        for place, engine in (("trainer", self.trainer), ("evaluator", self.evaluator)):
            for owner in engine.owners:
                has_state = all(callable(getattr(owner, method, None)) for method in ("state_dict", "load_state_dict"))
                # Leave out models and optimizers, which the checkpoint already contains.
                if has_state and not hasattr(owner, "parameters") and not hasattr(owner, "param_groups"):
                    number = 1 + sum(name.startswith(f"{place}/{type(owner).__name__}#") for name in found)
                    found[f"{place}/{type(owner).__name__}#{number}"] = owner
        return found
