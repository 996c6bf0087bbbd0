"""TerminateOnNaN: stop when the loss is no number any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from hookpoint.callbacks.stopping._loss_reader import Loss, LossWatch
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import NonFiniteLoss
from hookpoint.core.run.run import Run


class TerminateOnNaN(Callback):
    """Stop the run when the loss of a training step is NaN or infinite; with `raise_error`, raise NonFiniteLoss instead.

    The end points run as after any stop. With a saver in the list, and weights that are spoilt by then, the last state is not
    saved, and the last good checkpoint stays the newest. A loss on the host is checked after its step, one on a GPU when it has
    come: within some 50 steps, at the end of the epoch at the latest. All parts of a tuple of losses are checked.

    Listens to on_train_iter_end and on_train_epoch_end. Reads `run.loss` or, where that is not set, what is logged as "loss";
    neither of them is an error. Sends the event "stop". Keeps nothing in the checkpoint: a run that is resumed from the last
    good one may fare better. Runs on all ranks. A step pays one to three microseconds.

    >>> with Loop([TerminateOnNaN()]) as run:
    ...     for batch in run.batches([0.5, float("nan"), 0.25]):
    ...         run.log(loss=batch)
    >>> run.step
    2
    """

    handles_nonfinite_loss = True

    def __init__(self, raise_error: bool = False, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.raise_error = raise_error
        self._watch = LossWatch()

    def on_run_begin(self) -> None:
        self._watch.reset()

    def on_train_iter_end(self, run: Run) -> None:
        self._look_at(run, self._watch.take(run))

    def on_train_epoch_end(self, run: Run) -> None:
        self._look_at(run, self._watch.finish(run, self.name or "TerminateOnNaN"))

    def _look_at(self, run: Run, losses: Iterable[Loss]) -> None:
        bad = next((loss for loss in losses if not loss.is_finite), None)
        if bad is not None:
            if self.raise_error:
                raise NonFiniteLoss(bad.value, epoch=bad.epoch, step=bad.step, now=run.step)
            run.stop(f"{self.name or 'TerminateOnNaN'}: the loss is {bad.value} at step {bad.step}")
