"""LossMonitor: print the loss, and end the run when it is no number any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.callbacks.stopping._loss_reader import Loss, LossWatch
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import NonFiniteLoss
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say


class LossMonitor(Callback):
    """Print the loss of every `per_print_times`-th step, and raise NonFiniteLoss when a loss is NaN or infinite.

    As in MindSpore, a line reads `epoch: 1 step: 2, loss is 0.5`, with the step in the epoch, and 0 prints nothing. Of a tuple
    of losses the first one is printed, and all are checked. A loss on the host is checked after its step. One on a GPU is read
    when it has come, without waiting for it: lines come a step or so later, and where nothing is printed a bad loss is found
    within some 50 steps, at the end of the epoch at the latest, with the step it belongs to.

    Listens to on_train_iter_end and on_train_epoch_end. Reads `run.loss` or, where that is not set, what is logged as "loss";
    neither of them is an error. Keeps nothing in the checkpoint; no weights that are not finite are saved as good ones, so that
    the last good checkpoint stays the newest. Runs on all ranks, prints on the chief. A step pays one to three microseconds,
    one that prints for the printing.

    >>> with Loop([LossMonitor(0)]) as run:
    ...     for batch in run.batches([0.5, float("inf")]):
    ...         run.log(loss=batch)
    Traceback (most recent call last):
    ...
    hookpoint.core.errors.NonFiniteLoss: the loss is inf at step 2, in epoch 1...
    """

    handles_nonfinite_loss = True

    def __init__(self, per_print_times: int = 1, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.per_print_times = whole("LossMonitor", "per_print_times", per_print_times)
        self._watch = LossWatch()
        self._to_print: set[int] = set()

    def on_run_begin(self) -> None:
        self._watch.reset()
        self._to_print = set()

    def on_train_iter_end(self, run: Run) -> None:
        prints = self.per_print_times > 0 and run.iteration % self.per_print_times == 0 and run.is_chief
        if prints:
            self._to_print.add(run.batch_idx + 1)
        self._look_at(run, self._watch.take(run, shown=prints))

    def on_train_epoch_end(self, run: Run) -> None:
        self._look_at(run, self._watch.finish(run, self.name or "LossMonitor"))

    def _look_at(self, run: Run, losses: Iterable[Loss]) -> None:
        for loss in losses:
            if not loss.is_finite:
                raise NonFiniteLoss(loss.value, epoch=loss.epoch, step=loss.step, now=run.step)
            if loss.part == 0 and loss.batch in self._to_print:
                self._to_print.discard(loss.batch)
                say(f"epoch: {loss.epoch} step: {loss.batch}, loss is {loss.value:g}")
