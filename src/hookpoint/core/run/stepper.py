"""Stepper: what `run.forward()`, `run.backward()` and `run.optimizer_step()` do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from hookpoint.core.data.array_batches import BatchSize, as_batches
from hookpoint.core.errors import BadLoop

if TYPE_CHECKING:
    from hookpoint.core.run_view import Dispatch


class Stepper(Protocol):
    """Compute outputs and loss, gradients, and the step, in the way of an engine."""

    def forward(self, run: Any) -> None: ...

    def backward(self, run: Any) -> None: ...

    def step(self, run: Any) -> None: ...

    def adjust_lr(self, run: Any) -> None: ...

    def finish(self, run: Any) -> None:
        """Do what is left when the training data of an epoch has ended."""

    def batches(self, data: Any, batch_size: BatchSize) -> Iterable[Any]:
        """Return something to iterate over, whatever the data is."""

    def evaluating(self, run: Any) -> AbstractContextManager[None]:
        """Hold the model as it is evaluated, without gradients; leave it as it was found."""

    def evaluate(self, run: Any, forward: Dispatch | None) -> None:
        """Compute a batch of a validation pass, with this forward instead of the run's own where one is given."""

    def state_dict(self, run: Any) -> dict[str, Any]:
        """Return what a checkpoint keeps of the step itself."""

    def load_state_dict(self, run: Any, state: Mapping[str, Any]) -> None: ...


class PlainStepper:
    """The step as one would write it down: for any model, criterion and optimizer with the usual methods.

    How a model is held while it is evaluated, and how batches are made of arrays, is for those to say who know its framework.
    """

    def __init__(
        self,
        *,
        evaluating: Callable[[Any], AbstractContextManager[None]] = nullcontext,
        batches: Callable[[Any, BatchSize], Iterable[Any]] = as_batches,
    ) -> None:
        self._evaluating = evaluating
        self.batches = batches

    def forward(self, run: Any) -> None:
        if run.mode == "pred":
            run.outputs = run.model(run.batch)
            return
        if not isinstance(run.batch, tuple | list) or len(run.batch) != 2:
            raise BadLoop(
                f"the batch is a {type(run.batch).__name__}, and no pair of inputs and targets.",
                write="the forward yourself: a MainCallback's, or that of whoever takes forward=",
            )
        inputs, run.targets = run.batch
        run.outputs = run.model(inputs)
        if run.mode == "train" or run.criterion is not None:
            run.loss = run.criterion(run.outputs, run.targets)

    def evaluating(self, run: Any) -> AbstractContextManager[None]:
        return self._evaluating(run.model)

    def evaluate(self, run: Any, forward: Dispatch | None) -> None:
        (forward or run.hooks.dispatch("on_val_forward", mode="val") or self.forward)(run)

    def backward(self, run: Any) -> None:
        run.optimizer.zero_grad()
        run.hooks.fire("on_backward_begin", run)
        if "backward" not in run.skipped:
            run.loss.backward()
        run.hooks.fire("on_backward_end", run)

    def step(self, run: Any) -> None:
        if not run.skipped & {"backward", "step"}:
            run.optimizer.step()

    def adjust_lr(self, run: Any) -> None:
        if run.lr_scheduler is not None:
            run.lr_scheduler.step()

    def finish(self, run: Any) -> None:
        """Nothing is ever left."""

    def state_dict(self, run: Any) -> dict[str, Any]:
        return {}

    def load_state_dict(self, run: Any, state: Mapping[str, Any]) -> None:
        """Nothing is ever kept."""
