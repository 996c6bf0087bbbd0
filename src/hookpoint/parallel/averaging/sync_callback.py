"""SyncCallback: synchronize diverging replicas, with means over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.utils import average_parameters

from hookpoint.core.callback.callback import Callback
from hookpoint.core.loop.services import machine_of
from hookpoint.parallel.shared.local_shards import by_kind, in_one_message
from hookpoint.parallel.team.peer_errors import waiting_in

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run


class SyncCallback(Callback):
    """Synchronize the replicas at the end of a training pass, before other callbacks read the model.

    Callbacks such as SwapEMAWeights compute averages of one rank's weights. Before a validation pass uses these averages, they
    are averaged over all ranks, which yields the averages for the synchronized model.
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


def all_reduce_mean(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the mean of each tensor over all ranks, bit-identical on all ranks. For integers, return the chief's values.

    Leaves the tensors unchanged. Sends one message per dtype. All ranks call it with the same shapes.
    """
    means = [tensor.detach() if _has_mean(tensor) else tensor.detach().clone() for tensor in tensors]
    with waiting_in("an average over all ranks"):
        for group in by_kind(means):
            if _has_mean(group[0]):  # torch assigns new data to these tensors
                average_parameters(iter(group), dist.group.WORLD)  # type: ignore[arg-type, no-untyped-call, unused-ignore]
            else:
                in_one_message(group, lambda flat: dist.broadcast(flat, 0))
    return means


def _has_mean(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def copy_into(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy values into tensors without recording the copy in autograd."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.detach().data.copy_(value)
