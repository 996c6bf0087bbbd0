"""Clipping: gradients of which each process has parts, and others of which it has all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.parallel.shared.local_shard import here
from hookpoint.parallel.tensor._merged_gradients import is_apart


def clip_sharded(parameters: Iterable[torch.nn.Parameter], max_norm: float, group: Any) -> None:
    """Clip by the norm that all gradients have together, whole; torch's own takes no mixture of parts and wholes.

    `group` are the processes that have the parts.
    """
    gradients = [one.grad for one in parameters if one.grad is not None]
    if not gradients:
        return
    with torch.no_grad():
        norms = [_norm(gradients, of_parts=True), _norm(gradients, of_parts=False)]
        squares = norms[0].square()
        dist.all_reduce(squares, group=group)
        total = (squares + norms[1].square()).sqrt()
        share = torch.clamp(max_norm / (total + 1e-6), max=1.0)  # as torch's own
        for gradient in gradients:
            own = here(gradient)
            own.mul_(share.to(own.dtype))


def _norm(gradients: list[torch.Tensor], *, of_parts: bool) -> torch.Tensor:
    own = [here(one) for one in gradients if is_apart(one) == of_parts]
    if not own:
        return torch.zeros((), device=gradients[0].device)
    return torch.nn.utils.get_total_norm(own).float()
