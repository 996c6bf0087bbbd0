"""Means of tensors over all ranks, bit-identical on each of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.utils import average_parameters

from hookpoint.parallel.shared.local_shards import by_kind, in_one_message
from hookpoint.parallel.team.peer_errors import waiting_in


def all_reduce_mean(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the mean of each tensor over all ranks; for integers and booleans, the chief's values.

    Leaves the tensors unchanged. Sends one message per dtype. All ranks call it with the same shapes.
    """
    means = [tensor.detach() if _has_mean(tensor) else tensor.detach().clone() for tensor in tensors]
    with waiting_in("an average over all ranks"):
        for group in by_kind(means):
            if _has_mean(group[0]):  # torch assigns new data to these
                average_parameters(iter(group), dist.group.WORLD)  # type: ignore[arg-type, no-untyped-call, unused-ignore]
            else:
                in_one_message(group, lambda flat: dist.broadcast(flat, 0))
    return means


def _has_mean(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def copy_into(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy values into tensors without recording it in autograd."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.detach().data.copy_(value)
