"""MainCallback: the one callback that owns forward, backward and the learning-rate step."""

from __future__ import annotations

from typing import Any

from hookpoint.core.callback.callback import Callback


class MainCallback(Callback):
    """Compute the step. A run has exactly one; override what differs from the defaults.

    A forward sets `run.outputs` and `run.loss`; `on_train_forward` and `on_val_forward` call `on_iter_forward` unless
    overridden. By default `run.forward()` takes `inputs, targets = run.batch`, calls the model and the criterion;
    `run.backward()` clears the last gradients and computes new ones; `run.optimizer_step()` applies them. The three know of
    accumulation, clipping and precision, and fire their points. Failures always end the run, whatever `on_error` says.

    >>> class Detector(MainCallback):
    ...     def on_iter_forward(self, run):
    ...         image, target = run.batch
    ...         run.outputs = run.model(image, target)
    ...         run.loss = sum(run.outputs.values())
    """

    def on_iter_forward(self, run: Any) -> None:
        run.forward()

    def on_train_forward(self, run: Any) -> None:
        self.on_iter_forward(run)

    def on_val_forward(self, run: Any) -> None:
        self.on_iter_forward(run)

    def on_pred_forward(self, run: Any) -> None:
        run.forward()

    def on_iter_backward(self, run: Any) -> None:
        run.backward()
        run.optimizer_step()

    def on_lr_adjust(self, run: Any) -> None:
        run.adjust_lr()


MainCallBack = MainCallback
