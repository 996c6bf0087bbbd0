"""ModelStop: `model.stop_training = True`, which is how Keras's callbacks ask a run to stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hookpoint.core.checkpoint.plain_names import COMPILED, WRAPPED
from hookpoint.core.loop.passes import Pass
from hookpoint.core.run.run import Run
from hookpoint.core.run_view import Dispatch

FLAG = "stop_training"


class ModelStop:
    """Look for the flag on the models of a run, inside of torch.compile's and DistributedDataParallel's wrappers too.

    Nobody looks where the list has no callback of the user's.
    """

    def __init__(self, *, has_users_callback: bool) -> None:
        self._has_users_callback = has_users_callback
        self._attributes: list[dict[str, Any]] = []

    def begin(self, run: Run) -> None:
        """Find the models, and remove a flag that an earlier run left on them."""
        if self._has_users_callback:
            self._attributes = [vars(one) for model in run.models for one in _with_inner(model)]
        for attributes in self._attributes:
            if attributes.get(FLAG) is True:
                del attributes[FLAG]

    def watch(self, one: Pass) -> None:
        """Look after the last handlers of each iteration of a training pass."""
        if one.is_train and self._attributes:
            one.end, one.timed = self._after(one.end), (one.timed[0], self._after(one.timed[1]))

    def heed(self, run: Run) -> None:
        """Stop the run if the flag is set."""
        if any(attributes.get(FLAG) is True for attributes in self._attributes):
            run.stop("model.stop_training was set")

    def _after(self, end: Dispatch | None) -> Dispatch:
        def ended(run: Run) -> None:
            if end is not None:
                end(run)
            self.heed(run)

        return ended


def _with_inner(model: Any) -> Iterator[Any]:
    if isinstance(model, list | tuple):
        for one in model:
            yield from _with_inner(one)
        return
    while hasattr(model, "__dict__"):
        yield model
        inside = vars(model).get("_modules", {})
        model = inside.get(COMPILED, inside.get(WRAPPED.removesuffix(".")))
