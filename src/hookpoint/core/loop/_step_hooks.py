"""StepHooks: count optimizer steps and fire their points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run
    from hookpoint.core.run_view import Dispatch
    from hookpoint.core.schedule.clocks import Clocks


class StepHooks:
    """Observe `optimizer.step()` through its hooks, or let a host report steps (host_driver.py).

    `begin` calls the handlers of on_step_begin, and `end` calls the handlers of on_step_end. Each of these two attributes is
    None if its point has no handlers.

    If there is no optimizer, or the optimizer has no hooks, each training batch counts as a step. In a dict or list of
    optimizers, only the first one is observed. The callbacks that read gradients observe the others themselves.
    """

    def __init__(self, run: Run, clocks: Clocks, *, has_host: bool = False) -> None:
        self.run, self._clocks = run, clocks
        self._handles: list[Any] = []
        self.begin: Dispatch | None = None
        self.end: Dispatch | None = None
        optimizer = next(iter(run.optimizers), None)
        self._optimizer = optimizer if hasattr(optimizer, "register_step_post_hook") and not has_host else None
        self.are_reported = has_host or self._optimizer is not None  # otherwise, each training batch counts as a step

    def install(self) -> None:
        self.begin = self.run.hooks.dispatch("on_step_begin", mode="train", sampled=True)
        self.end = self.run.hooks.dispatch("on_step_end", mode="train", sampled=True)
        if self._optimizer is not None:
            if self.begin is not None:
                self._handles.append(self._optimizer.register_step_pre_hook(self.before_step))
            self._handles.append(self._optimizer.register_step_post_hook(self.after_step))

    def remove(self) -> None:
        """Stop observing the optimizer.

        Called at the end of the run. If the Runner counts the steps itself, it also calls this method at the start of
        the run.
        """
        while self._handles:
            self._handles.pop().remove()

    def before_step(self, *args: Any) -> None:
        if self.begin is not None:
            self.begin(self.run)

    def after_step(self, *args: Any) -> None:
        self._clocks.count_step()
        if self.end is not None:
            self.end(self.run)
