"""Inferencer: what measures something over a data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run


class Inferencer(Protocol):
    """Measure something over the batches of a validation pass; an `InferenceRunner` runs any number of them at once.

    `names` are those of the results, known before anything runs. `update` finds `run.outputs`, `run.targets`, `run.loss` and
    `run.batch` of a batch, and adds up without waiting for a device; a result may be a number, a tensor of one element or
    anything with `__float__`. In a run of several processes each has a part of the data: an inferencer with a method
    `share(run)` is called there, before `results`, to make its sums those of all, with `run.reduce` or `run.gather`.

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

    if TYPE_CHECKING:  # there is none at run time: a subclass may set its own in __init__

        @property
        def names(self) -> tuple[str, ...]:
            """The names of what `results` returns."""

    def reset(self) -> None:
        """Begin anew: a pass over the data set begins."""

    def update(self, run: Run) -> None:
        """Take in the batch that was just computed."""

    def results(self, logged: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what was measured, by name. `logged` has the means of what was logged in the pass."""
