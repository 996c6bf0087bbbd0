"""MainCallback: the callback that defines forward, backward and the learning-rate step."""

from __future__ import annotations

from typing import Any

from hookpoint.core.callback.callback import Callback


class MainCallback(Callback):
    """Compute the training step. A run has exactly one MainCallback. To change the training step, override its methods.

    A forward method sets `run.outputs` and `run.loss`. `on_train_forward` and `on_val_forward` call `on_iter_forward` unless
    overridden. The default forward and backward methods call three methods of the run. `run.forward()` unpacks
    `inputs, targets = run.batch` and calls the model and the criterion. `run.backward()` clears the gradients and computes new
    ones. `run.optimizer_step()` applies them. These three methods also handle accumulation, clipping and precision, and fire
    the points of the backward pass and of the optimizer step. An error in a MainCallback always ends the run, regardless of
    `on_error`.

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


def overrides(main: Any, *methods: str) -> bool:
    """Return whether a MainCallback overrides at least one of the given methods."""
    kind = MainCallback if main is None else type(main)
    return any(getattr(kind, method) is not getattr(MainCallback, method) for method in methods)
