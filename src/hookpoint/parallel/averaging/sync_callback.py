"""Merging: what is done in a run whose processes have copies of the model, at the places where it has to be one model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hookpoint.core.callback.callback import Callback
from hookpoint.core.loop.services import machine_of
from hookpoint.parallel.averaging.all_reduce_mean import means_of, put

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run


class Settles(Protocol):
    """A strategy that can make its copies the same."""

    def settle(self) -> None: ...

    def leave(self) -> None: ...


class Merging(Callback):
    """Let copies be the same at the end of a training pass, before anybody looks at the model.

    Averages over time that callbacks keep, as SwapEMAWeights, are those of one process's copies: before they are used in a
    validation they are averaged over all processes, which is the average over time of the copies' average.
    """

    is_internal = True

    def __init__(self, strategy: Settles) -> None:
        super().__init__()
        self._strategy = strategy

    def on_setup(self, run: Run) -> None:
        for entry in run.hooks.entries:
            if hasattr(entry.subject, "copies"):
                entry.subject.per_rank_state = True

    def on_train_epoch_end(self, run: Run) -> None:
        self._strategy.settle()
        self._merge_copies(run)

    def on_val_epoch_begin(self, run: Run) -> None:
        if machine_of(run).scopes.passes[-1].is_shared and run.team.size > 1:
            self._merge_copies(run)

    def on_run_end(self, run: Run) -> None:
        self._strategy.leave()

    @staticmethod
    def _merge_copies(run: Run) -> None:
        copies: list[Any] = [one for entry in run.hooks.entries for one in getattr(entry.subject, "copies", ())]
        if copies:
            put(copies, means_of(copies))
