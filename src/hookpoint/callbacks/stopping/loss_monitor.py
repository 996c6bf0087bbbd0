"""LossMonitor: print the loss, and raise if it is not finite."""

from __future__ import annotations

import math
from typing import ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks.stopping._loss_callback import Loss, LossCallback
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import NonFiniteLoss
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say


class LossMonitor(LossCallback):
    """Print the loss of every `per_print_times`-th step, and raise NonFiniteLoss if a loss is NaN or infinite.

    As in MindSpore, a line reads `epoch: 1 step: 2, loss is 0.5`, where steps count from the start of the epoch.
    `per_print_times=0` prints nothing. Only the chief prints. If the loss is a tuple, its first element is printed
    and all elements are checked.

    A loss on the host is checked after its step. A loss on a GPU is checked once it has been copied to the host. Training does
    not wait for the copy, so lines appear about a step later. GPU losses that are not printed are copied in groups. A nonfinite
    loss in such a group is found within about 50 steps, and by the end of the epoch at the latest. The error names the step.
    Weights that contain NaN or infinity are never saved, so the newest checkpoint contains only finite weights.

    Reads `run.loss` or, if it is not set, the value logged as "loss" in the same iteration. Iterations without a loss are
    skipped. Raises if no iteration has a loss.

    >>> with Loop([LossMonitor(0)]) as run:
    ...     for batch in run.batches([0.5, float("inf")]):
    ...         run.log(loss=batch)
    Traceback (most recent call last):
    ...
    hookpoint.core.errors.NonFiniteLoss: the loss is inf at step 2, in epoch 1...
    """

    step_cost: ClassVar[str] = f"{LossCallback.step_cost}, plus the time to print"

    def __init__(self, per_print_times: int = 1, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.per_print_times = integer("LossMonitor", "per_print_times", per_print_times)

    def on_run_begin(self) -> None:
        super().on_run_begin()
        self._to_print: set[int] = set()

    def on_train_iter_end(self, run: Run) -> None:
        prints = self.per_print_times > 0 and run.iteration % self.per_print_times == 0 and run.is_chief
        if prints:
            self._to_print.add(run.batch_idx + 1)
        self._read(run, shown=prints)

    def check(self, run: Run, losses: list[Loss]) -> None:
        for loss in losses:
            if not math.isfinite(loss.value):
                raise NonFiniteLoss(loss.value, epoch=loss.epoch, step=loss.step, now=run.step)
            if loss.part == 0 and loss.batch in self._to_print:
                self._to_print.discard(loss.batch)
                say(f"epoch: {loss.epoch} step: {loss.batch}, loss is {loss.value:g}")
