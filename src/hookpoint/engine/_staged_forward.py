"""StagedForward: a forward whose layers are on different processes, with the backward in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from hookpoint.core.errors import BadStrategy
from hookpoint.engine._forward import Forward
from hookpoint.parallel.strategy.strategy import Pipelined


class StagedForward(Forward):
    """Find a model's arguments in a batch as `Forward` does, and let a strategy compute outputs and loss of them.

    In training the gradients are computed with them, and the loss's backward puts them into place: whoever skips it finds none.
    """

    def __init__(self, model: Any, criterion: Callable[..., Any] | None, strategy: Pipelined) -> None:
        super().__init__(model, criterion)
        self._signature = inspect.signature(model.forward)
        self._strategy = strategy
        self._model = self._arguments
        self._loss: Any = None

    def outputs(self, batch: Any, *, predicts: bool) -> tuple[Any, Any]:
        arguments, targets = super().outputs(batch, predicts=predicts)
        self._loss = None
        if predicts or not torch.is_grad_enabled():
            return self._strategy.outputs(arguments), targets
        if targets is None:
            raise BadStrategy("the batch has no targets for the criterion.", give="batches of (inputs, targets)")
        outputs, self._loss = self._strategy.forward_backward(arguments, targets, self._criterion)
        return outputs, targets

    def loss(self, outputs: Any, targets: Any, *, is_needed: bool = True) -> Any:
        loss, self._loss = self._loss, None
        return super().loss(outputs, targets, is_needed=is_needed) if loss is None else loss

    def _arguments(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Stand in for the model: what it would be called with, in the order that its forward has them."""
        return self._signature.bind(*args, **kwargs).args
