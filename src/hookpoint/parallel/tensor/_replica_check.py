"""ReplicaCheck: ranks that share a model must have the same inputs and outputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from hookpoint.core.errors import BadStrategy


class ReplicaCheck:
    """Make a model return plain tensors, and check in its first call that inputs and outputs match on all its ranks.

    The ranks compare sums of inputs and outputs. A mismatch ends the run before its first step.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self._is_done = False
        self._inputs: list[float] = []

    def watch(self, module: torch.nn.Module) -> None:
        module.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True)  # before a style replaces the inputs
        module.register_forward_hook(self._end)

    def _begin(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_done:
            self._inputs = _sums([*args, *kwargs.values()])

    def _end(self, module: torch.nn.Module, _: Any, outputs: Any) -> Any:
        outputs = tree_map_only((DTensor, AsyncCollectiveTensor), _plain, outputs)
        if not self._is_done:
            self._is_done = True
            self._compare(type(module).__name__, [*self._inputs, *_sums(outputs)])
        return outputs

    def _compare(self, name: str, sums: list[float]) -> None:
        mine = torch.tensor(sums, dtype=torch.float64, device=self._device)
        ranks = [torch.zeros_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(ranks, mine, group=self._group)
        half = len(sums) // 2
        if not all(_near(rank[:half], ranks[0][:half]) for rank in ranks):
            raise BadStrategy(
                f"TensorParallel: the ranks that share {name} have different inputs.",
                give="a DataLoader without a sampler, or a sampler for run.data_rank of run.team.data_size",
            )
        if not all(_near(rank[half:], ranks[0][half:]) for rank in ranks):
            raise BadStrategy(
                f"TensorParallel: the ranks that share {name} have different outputs: the plan leaves them sharded.",
                give="ColwiseParallel(output_layouts=Replicate()) for a layer that no rowwise one follows",
            )


def _sums(values: Any) -> list[float]:
    """Return numbers that identify tensors: their count, shapes, sums and magnitudes."""
    tensors = [one.detach() for one in tree_leaves(values) if isinstance(one, torch.Tensor)]
    shapes = [(place + 1) * size for one in tensors for place, size in enumerate(one.shape, start=one.dim())]
    wide = [one.to(torch.float64) for one in tensors if not one.is_complex()]
    return [len(tensors), sum(shapes), sum(float(one.sum()) for one in wide), sum(float(one.abs().sum()) for one in wide)]


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one - other).abs() <= 1e-3 * other.abs().max()).all()) or bool(other.isnan().any() or other.isinf().any())


def _plain(tensor: Any) -> torch.Tensor:
    full: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.clone() if isinstance(full, AsyncCollectiveTensor) else full
