"""Optimizer steps of a loop of one's own: counted, and fired as points, through the optimizer's own hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run
    from hookpoint.core.schedule.clocks import Clocks


class StepHooks:
    """Watch `optimizer.step()`. Where an optimizer has no hooks, or there is none, a step is a training batch.

    Of several optimizers in a dict the first one is watched: a step of the run is a step of that one.
    """

    def __init__(self, run: Run, clocks: Clocks) -> None:
        self._run, self._clocks = run, clocks
        self._handles: list[Any] = []
        optimizer = run.optimizer
        if isinstance(optimizer, Mapping):
            optimizer = next(iter(optimizer.values()), None)
        self._optimizer = optimizer if hasattr(optimizer, "register_step_post_hook") else None
        self.are_reported = self._optimizer is not None  # else a training batch counts as a step

    def install(self) -> None:
        if self._optimizer is None:
            return
        self._begin = self._run.hooks.dispatch("on_step_begin", mode="train")
        self._end = self._run.hooks.dispatch("on_step_end", mode="train")
        if self._begin is not None:
            self._handles.append(self._optimizer.register_step_pre_hook(self._before))
        self._handles.append(self._optimizer.register_step_post_hook(self._after))

    def remove(self) -> None:
        """Stop watching: at the end, or because a stepper makes every step itself, and counts them."""
        while self._handles:
            self._handles.pop().remove()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._begin is not None:
            self._begin(self._run)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._clocks.count_step()
        if self._end is not None:
            self._end(self._run)
