"""SyncCallback: make diverging replicas one model again at the end of each training pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.loop.services import machine_of
from hookpoint.parallel.averaging.all_reduce_mean import all_reduce_mean, copy_into

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run


class SyncCallback(Callback):
    """Synchronize the replicas at the end of a training pass, before other callbacks read the model.

    Weight averages that callbacks keep, such as SwapEMAWeights, are averages of one rank's replica. Before a validation uses
    them, they are averaged over all ranks, which yields the average of the synchronized model.
    """

    is_internal = True

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self._strategy = strategy

    def on_setup(self, run: Run) -> None:
        for entry in run.hooks.entries:
            if hasattr(entry.subject, "copies"):
                entry.subject.per_rank_state = True

    def on_train_epoch_end(self, run: Run) -> None:
        self._strategy.synchronize()
        self._average_copies(run)

    def on_val_epoch_begin(self, run: Run) -> None:
        if machine_of(run).scopes.passes[-1].is_shared and run.team.size > 1:
            self._average_copies(run)

    def on_run_end(self, run: Run) -> None:
        self._strategy.end_run()

    @staticmethod
    def _average_copies(run: Run) -> None:
        copies: list[Any] = [copy for entry in run.hooks.entries for copy in getattr(entry.subject, "copies", ())]
        if copies:
            copy_into(copies, all_reduce_mean(copies))
