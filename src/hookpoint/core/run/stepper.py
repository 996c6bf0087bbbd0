"""Stepper: the implementation of `run.forward()`, `run.backward()` and `run.optimizer_step()`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from hookpoint.core.data.array_batches import BatchSize, as_batches
from hookpoint.core.errors import BadData

if TYPE_CHECKING:
    from hookpoint.core.run_view import Dispatch


OWN_FORWARD = "your own forward pass in a MainCallback"


class Stepper:
    """Compute outputs, loss and gradients, and step the optimizer. This works with any objects that have the usual methods.

    Two functions adapt the stepper to a framework. `evaluating` returns a context manager that puts a model in evaluation mode.
    `batches` builds batches from arrays. An engine overrides all methods.
    """

    accumulate: int = 1  # the number of batches per optimizer step, unless a MainCallback steps the optimizer

    def __init__(
        self,
        *,
        evaluating: Callable[[Any], AbstractContextManager[None]] = nullcontext,
        batches: Callable[[Any, BatchSize], Iterable[Any]] = as_batches,
    ) -> None:
        self._evaluating, self._batches = evaluating, batches

    def forward(self, run: Any) -> None:
        if run.mode == "pred":
            run.outputs = run.model(run.batch)
            return
        if problem := self.misfit(run.batch):
            raise BadData(f"{problem}.", write=OWN_FORWARD)
        inputs, run.targets = run.batch
        run.outputs = run.model(inputs)
        if run.mode == "train" or run.criterion is not None:
            run.loss = run.criterion(run.outputs, run.targets)

    def misfit(self, batch: Any) -> str:
        """Return why `forward` cannot use a batch, or "" if it can."""
        if isinstance(batch, tuple | list) and len(batch) == 2:
            return ""
        found = type(batch).__name__ + (f" of length {len(batch)}" if isinstance(batch, tuple | list) else "")
        return f"expected each batch to be a pair (inputs, targets), got {found}"

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
        """Do nothing. A subclass can step the optimizer here if the epoch's last accumulation window is incomplete."""

    def batches(self, data: Any, batch_size: BatchSize) -> Iterable[Any]:
        """Return an iterable of batches for any kind of data."""
        return self._batches(data, batch_size)

    def evaluating(self, run: Any) -> AbstractContextManager[None]:
        """Put the model in evaluation mode and disable gradients inside a `with` block. Restore both afterwards."""
        return self._evaluating(run.model)

    def evaluate(self, run: Any, forward: Dispatch | None) -> None:
        """Run the forward pass on one validation batch. If `forward` is given, it replaces the run's own forward pass."""
        (forward or run.hooks.dispatch("on_val_forward", mode="val") or self.forward)(run)

    def state_dict(self, run: Any) -> dict[str, Any]:
        """Return the step's state, to save in a checkpoint."""
        return {}

    def load_state_dict(self, run: Any, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""

    def recapture(self) -> None:
        """If the step is captured in a CUDA graph, capture it again."""
