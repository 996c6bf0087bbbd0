"""SyncCallback: synchronize diverging replicas, and compute means over all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.utils import average_parameters

from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadStrategy
from hookpoint.core.loop.services import machine_of
from hookpoint.parallel.shared.local_shards import by_kind, in_one_message
from hookpoint.parallel.team.peer_errors import waiting_in

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run


class SyncCallback(Callback):
    """Synchronize the replicas at the end of a training pass, before other callbacks read the model.

    On each rank, callbacks such as SwapEMAWeights keep a moving average of the rank's weights. Before validation uses these
    moving averages, this callback replaces them with their mean over all ranks, so that they match the synchronized model.
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

    def _average_copies(self, run: Run) -> None:
        copies: list[Any] = [copy for entry in run.hooks.entries for copy in getattr(entry.subject, "copies", ())]
        if copies:
            weight = getattr(self._strategy, "current_weight", None)
            copy_into(copies, all_reduce_mean(copies, None if weight is None else weight()))


def all_reduce_mean(tensors: Sequence[torch.Tensor], weight: float | None = None) -> list[torch.Tensor]:
    """Return the mean of each tensor over all ranks, bit-identical on all ranks.

    For integer tensors, the chief's values are returned instead of a mean. The input tensors are not changed. All tensors with
    the same dtype are sent in one collective call. All ranks must pass tensors with the same shapes. If one rank passes a
    `weight`, all ranks must pass a `weight`. A rank with weight 0 does not contribute, even if its values are NaN.
    """
    if weight is not None:
        return _weighted_mean(tensors, weight)
    means = [tensor.detach() if _has_mean(tensor) else tensor.detach().clone() for tensor in tensors]
    with waiting_in("an average over all ranks"):
        for group in by_kind(means):
            if _has_mean(group[0]):  # average_parameters assigns new data to these tensors
                average_parameters(iter(group), dist.group.WORLD)  # type: ignore[arg-type, no-untyped-call, unused-ignore]
            else:
                in_one_message(group, lambda flat: dist.broadcast(flat, 0))
    return means


def _weighted_mean(tensors: Sequence[torch.Tensor], weight: float) -> list[torch.Tensor]:
    with waiting_in("an average over all ranks"):
        total = torch.tensor(weight, dtype=torch.float64, device=tensors[0].device if tensors else "cpu")
        dist.all_reduce(total)
        if not total > 0:
            raise BadStrategy(
                "ParameterAveraging: the weight is 0 on all ranks.", give="a positive weight to at least one rank"
            )
        share = weight / float(total)
        means = [_share_of(tensor.detach(), share) if _has_mean(tensor) else tensor.detach().clone() for tensor in tensors]
        for group in by_kind(means):
            in_one_message(group, dist.all_reduce if _has_mean(group[0]) else lambda flat: dist.broadcast(flat, 0))
    return means


def _share_of(tensor: torch.Tensor, share: float) -> torch.Tensor:
    return tensor * share if share else torch.zeros_like(tensor)


def checked_weight(weight: Any) -> float:
    """Return a rank's weight as a float. Raise BadStrategy if it is not a finite number >= 0."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise BadStrategy(f"ParameterAveraging: weight must be a finite number >= 0, got {weight!r}.")
    return float(weight)


def _has_mean(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def copy_into(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy values into tensors without recording the copies in autograd."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.detach().data.copy_(value)
