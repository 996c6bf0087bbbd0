"""ModelStop: stop the run if a callback sets `model.stop_training = True`, as in Keras."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hookpoint.core.checkpoint.plain_names import COMPILED, WRAPPED
from hookpoint.core.loop._passes import Pass
from hookpoint.core.run.run import Run
from hookpoint.core.run_view import Dispatch

FLAG = "stop_training"


class ModelStop:
    """Check `stop_training` on a run's models, including models wrapped by torch.compile or DistributedDataParallel.

    If the user passes no callbacks of their own, nothing is checked.
    """

    def __init__(self, *, has_user_callbacks: bool) -> None:
        self._has_user_callbacks = has_user_callbacks
        self._attributes: list[dict[str, Any]] = []

    def begin(self, run: Run) -> None:
        """Find the models. If `stop_training` is still True from an earlier run, delete it."""
        if self._has_user_callbacks:
            self._attributes = [vars(module) for model in run.models for module in _with_inner(model)]
        for attributes in self._attributes:
            if attributes.get(FLAG) is True:
                del attributes[FLAG]

    def watch(self, pass_: Pass) -> None:
        """Check the flag after each training iteration, once all handlers have run."""
        if pass_.is_train and self._attributes:
            pass_.end, pass_.timed = self._after(pass_.end), (pass_.timed[0], self._after(pass_.timed[1]))

    def check(self, run: Run) -> None:
        """Stop the run if the flag is set."""
        if any(attributes.get(FLAG) is True for attributes in self._attributes):
            run.stop("model.stop_training was set")

    def _after(self, end: Dispatch | None) -> Dispatch:
        def ended(run: Run) -> None:
            if end is not None:
                end(run)
            self.check(run)

        return ended


def _with_inner(model: Any) -> Iterator[Any]:
    if isinstance(model, list | tuple):
        for item in model:
            yield from _with_inner(item)
        return
    while hasattr(model, "__dict__"):
        yield model
        inside = vars(model).get("_modules", {})
        model = inside.get(COMPILED, inside.get(WRAPPED.removesuffix(".")))
