"""Inferencer: the protocol for objects that measure something over a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from hookpoint.core.run.run import Run


class Inferencer(Protocol):
    """Measure something over the batches of a validation pass. An `InferenceRunner` runs any number of inferencers at once.

    `names` are the names of the results; they must be known before the run begins. `update` reads `run.outputs`, `run.targets`,
    `run.loss` and `run.batch`, and should update its sums without waiting for a device. A result is a number, a tensor with
    one element, or any object with `__float__`. In a distributed run, each rank has a shard of the data, and the optional
    method `share(run)` is called before `results`. Use it to add up the sums from all ranks with `run.reduce` or `run.gather`.

    >>> class Largest:
    ...     names = ("largest",)
    ...
    ...     def reset(self):
    ...         self.value = float("-inf")
    ...
    ...     def update(self, run):
    ...         self.value = max(self.value, *run.outputs)
    ...
    ...     def results(self, logged):
    ...         return {"largest": self.value}
    """

    if TYPE_CHECKING:  # `names` is not declared at run time, because a subclass may set it in __init__

        @property
        def names(self) -> tuple[str, ...]:
            """The names of the results."""

    def reset(self) -> None:
        """Start from scratch at the beginning of a pass over the dataset."""

    def update(self, run: Run) -> None:
        """Update the measurement with the current batch. Called after each batch."""

    def results(self, logged: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the results by name. `logged` contains the means of the values logged during the pass."""
