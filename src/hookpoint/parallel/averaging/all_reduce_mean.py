"""Means: those of tensors over all processes, the same everywhere to the last bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.utils import average_parameters

from hookpoint.core.errors import OutOfStep
from hookpoint.core.team.checked_team import unanswered


def means_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the mean of each tensor over all processes; of whole numbers, which have none, those of the chief.

    The tensors are left as they are. One message for each type of number; all processes call this with the same shapes.
    """
    made = [tensor.detach() for tensor in tensors]  # torch puts its means into these, and never where they came from
    groups: dict[Any, list[torch.Tensor]] = {}
    for one in made:
        groups.setdefault((one.dtype, one.device), []).append(one)
    with waiting_for("an average over all processes"):
        for (dtype, _), some in groups.items():
            _merge(dtype, some)
    return made


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Say what this process was waiting for in vain, where one of the others is gone."""
    try:
        yield
    except (torch.OutOfMemoryError, OutOfStep):
        raise
    except RuntimeError as error:
        raise unanswered(dist.get_rank(), dist.get_world_size(), what, error) from error


def _merge(dtype: torch.dtype, some: list[torch.Tensor]) -> None:
    if dtype.is_floating_point or dtype.is_complex:
        average_parameters(iter(some), dist.group.WORLD)  # type: ignore[arg-type, no-untyped-call, unused-ignore]
    else:
        joint = torch.cat([one.reshape(-1) for one in some])
        dist.broadcast(joint, 0)
        for one, values in zip(some, torch.split(joint, [one.numel() for one in some]), strict=True):
            one.data = values.view_as(one)


def put(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Write values into tensors, past autograd."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.detach().data.copy_(value)
