"""RunUpdateOps: call the functions registered with `run.update_op`."""

from __future__ import annotations

from typing import Unpack

from hookpoint.core.callback.callback import Options
from hookpoint.core.callback.idle_callback import IdleCallback
from hookpoint.core.run.run import Run


class RunUpdateOps(IdleCallback):
    """Call each function registered with `run.update_op(function)` after each optimizer step, in the order of registration.

    Listens to on_step_end. If the optimizer has no hooks, on_step_end never fires. Each batch then counts as a step, and
    on_train_iter_end is used instead.

    >>> with Loop([RunUpdateOps()]) as run:
    ...     run.update_op(lambda: print("updated after step", run.step))
    ...     for epoch in run.epochs(1):
    ...         for batch in run.batches([1, 2]):
    ...             pass
    updated after step 1
    updated after step 2
    """

    step_cost = "the time of the registered functions; about 0.2 microseconds if none is registered and on_step_end fires"

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self._has_step_hooks = False
        self._step = 0

    def is_idle_at(self, point: str) -> bool:
        is_ours = type(self).on_train_iter_end is RunUpdateOps.on_train_iter_end  # not overridden
        return is_ours and point == "on_train_iter_end" and self.trainer is not None and not self.trainer.update_ops

    def on_run_begin(self, run: Run) -> None:
        self._has_step_hooks = False
        self._step = run.step

    def on_step_end(self, run: Run) -> None:
        self._has_step_hooks = True
        for function in run.update_ops:
            function()

    def on_train_iter_end(self, run: Run) -> None:
        # While gradients are accumulated, the step number does not change.
        if not self._has_step_hooks and run.step != self._step:
            self._step = run.step
            for function in run.update_ops:
                function()
