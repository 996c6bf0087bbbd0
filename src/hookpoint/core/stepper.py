"""Stepper: what `run.forward()`, `run.backward()` and `run.optimizer_step()` do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hookpoint.core.run import Run


class Stepper(Protocol):
    """Compute outputs and loss, gradients, and the step, in the way of an engine."""

    def forward(self, run: Run) -> None: ...

    def backward(self, run: Run) -> None: ...

    def step(self, run: Run) -> None: ...

    def adjust_lr(self, run: Run) -> None: ...

    def finish(self, run: Run) -> None:
        """Do what is left when the training data of an epoch has ended."""

    def state_dict(self, run: Run) -> dict[str, Any]:
        """Return what a checkpoint keeps of the step itself."""

    def load_state_dict(self, run: Run, state: Mapping[str, Any]) -> None: ...


class PlainStepper:
    """The step as one would write it down: for any model, criterion and optimizer with the usual methods."""

    def forward(self, run: Run) -> None:
        if run.mode == "pred":
            run.outputs = run.model(run.batch)
        else:
            inputs, targets = run.batch
            run.outputs = run.model(inputs)
            run.loss = run.criterion(run.outputs, targets)

    def backward(self, run: Run) -> None:
        run.optimizer.zero_grad()
        run.hooks.fire("on_backward_begin", run)
        if "backward" not in run.skipped:
            run.loss.backward()
        run.hooks.fire("on_backward_end", run)

    def step(self, run: Run) -> None:
        if not run.skipped & {"backward", "step"}:
            run.optimizer.step()

    def adjust_lr(self, run: Run) -> None:
        if run.lr_scheduler is not None:
            run.lr_scheduler.step()

    def finish(self, run: Run) -> None:
        """Nothing is ever left."""

    def state_dict(self, run: Run) -> dict[str, Any]:
        return {}

    def load_state_dict(self, run: Run, state: Mapping[str, Any]) -> None:
        """Nothing is ever kept."""
