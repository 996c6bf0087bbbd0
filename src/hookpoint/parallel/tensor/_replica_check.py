"""ReplicaCheck: whether the processes that share a model have the same inputs and get the same outputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from hookpoint.core.errors import BadStrategy


class ReplicaCheck:
    """Give plain tensors to whoever calls a model, and see once that they are the same on all processes that share it.

    The first call tells: of inputs and outputs that are apart, a sum is sent, and the run ends before its first step.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self._was_seen = False
        self._inputs: list[float] = []

    def watch(self, module: torch.nn.Module) -> None:
        module.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True)  # before a style changes them
        module.register_forward_hook(self._end)

    def _begin(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._was_seen:
            self._inputs = _sums([*args, *kwargs.values()])

    def _end(self, module: torch.nn.Module, _: Any, outputs: Any) -> Any:
        outputs = tree_map_only((DTensor, AsyncCollectiveTensor), _plain, outputs)
        if not self._was_seen:
            self._was_seen = True
            self._compare(type(module).__name__, [*self._inputs, *_sums(outputs)])
        return outputs

    def _compare(self, name: str, sums: list[float]) -> None:
        mine = torch.tensor(sums, dtype=torch.float64, device=self._device)
        said = [torch.zeros_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(said, mine, group=self._group)
        half = len(sums) // 2
        if not all(_near(one[:half], said[0][:half]) for one in said):
            raise BadStrategy(
                f"the processes that share {name} have different inputs, and would train on a mixture of them.",
                give="a DataLoader without a sampler, or a sampler for run.data_rank of run.team.data_size",
            )
        if not all(_near(one[half:], said[0][half:]) for one in said):
            raise BadStrategy(
                f"the processes that share {name} get different outputs: the plan leaves parts of them apart.",
                give="ColwiseParallel(output_layouts=Replicate()) for a layer that no rowwise one follows",
            )


def _sums(values: Any) -> list[float]:
    """Return a few numbers that tell whether tensors are the same: how many they are, their shapes, sums and magnitudes."""
    tensors = [one.detach() for one in tree_leaves(values) if isinstance(one, torch.Tensor)]
    shapes = [(place + 1) * size for one in tensors for place, size in enumerate(one.shape, start=one.dim())]
    wide = [one.to(torch.float64) for one in tensors if not one.is_complex()]
    return [len(tensors), sum(shapes), sum(float(one.sum()) for one in wide), sum(float(one.abs().sum()) for one in wide)]


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one - other).abs() <= 1e-3 * other.abs().max()).all()) or bool(other.isnan().any() or other.isinf().any())


def _plain(tensor: Any) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.clone() if isinstance(whole, AsyncCollectiveTensor) else whole
