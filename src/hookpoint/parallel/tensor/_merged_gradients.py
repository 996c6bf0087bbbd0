"""MergedGradients: average and clip gradients across ranks that have different data and different shards of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _current_graph_task_id as current_graph_task_id
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from hookpoint.parallel.shared.local_shards import by_kind, in_one_message, local_shard
from hookpoint.parallel.team.torch_team import gloo_group

MESSAGE_SIZE = 2**22  # maximum number of elements per flat copy, which keeps the copy small compared to the model


class MergedGradients:
    """Average gradients at the end of each backward pass, unless batches are being accumulated.

    The gradient of a shard is averaged over the ranks that hold the same shard and have different data. The gradient of a
    replicated parameter is averaged over all ranks. Ranks that share a model compute this gradient from the same inputs, but on
    a GPU the last bits may differ. Averaging keeps the replicas identical. If any rank has a gradient for a parameter, all
    ranks receive one. A parameter that no rank has used gets no gradient.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], mesh: DeviceMesh) -> None:
        self._parameters = list(parameters)
        self._data_group, self._tensor_group = mesh.get_group("data"), mesh.get_group("tensor")
        self._flag_group = gloo_group()
        self._task = -1
        self._is_accumulating = False
        for parameter in self._parameters:
            is_trained = parameter.requires_grad
            parameter.requires_grad_(True)  # a frozen parameter also needs the hook, because it may be unfrozen later
            parameter.register_post_accumulate_grad_hook(self._merge_at_end)  # type: ignore[no-untyped-call]
            parameter.requires_grad_(is_trained)

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Suspend gradient averaging inside a `with` block."""
        self._is_accumulating = True
        try:
            yield
        finally:
            self._is_accumulating = False

    def merge(self) -> None:
        flags = torch.tensor([parameter.grad is not None for parameter in self._parameters], dtype=torch.uint8)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._flag_group)
        used = [parameter for parameter, is_used in zip(self._parameters, flags.tolist(), strict=True) if is_used]
        with torch.no_grad():
            for is_shard, group in ((True, self._data_group), (False, None)):
                for gradients in by_kind(_placed(parameter) for parameter in used if _is_split(parameter) == is_shard):
                    for chunk in _chunks(gradients):
                        _average(chunk, group)

    def clip(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        """Clip gradients by their total norm across all shards. torch's own function cannot mix shards and replicas."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return
        with torch.no_grad():
            squares = _norm(gradients, of_shards=True).square()
            dist.all_reduce(squares, group=self._tensor_group)
            total = (squares + _norm(gradients, of_shards=False).square()).sqrt()
            factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)  # the formula of torch's clip_grad_norm_
            for local in map(local_shard, gradients):
                local.mul_(factor.to(local.dtype))

    def _merge_at_end(self, _: torch.Tensor) -> None:
        # Each backward pass has its own task id, even if an earlier pass failed halfway or this pass is nested.
        task = current_graph_task_id()
        if task != self._task and not self._is_accumulating:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self.merge)


def _is_split(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DTensor) and any(isinstance(placement, Shard) for placement in tensor.placements)


def _norm(gradients: list[torch.Tensor], *, of_shards: bool) -> torch.Tensor:
    local = [local_shard(gradient) for gradient in gradients if _is_split(gradient) == of_shards]
    if not local:
        return torch.zeros((), device=gradients[0].device)
    return torch.nn.utils.get_total_norm(local).float()


def _placed(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return this rank's shard of a parameter's gradient.

    First, give the gradient the same placements as the parameter. If there is no gradient, set it to zeros.
    """
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    if isinstance(parameter, DTensor) and isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    if gradient is not parameter.grad:
        parameter.grad = gradient
    return local_shard(gradient)


def _chunks(gradients: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    chunk: list[torch.Tensor] = []
    for gradient in gradients:
        if chunk and sum(item.numel() for item in chunk) + gradient.numel() > MESSAGE_SIZE:
            yield chunk
            chunk = []
        chunk.append(gradient)
    yield chunk


def _average(gradients: list[torch.Tensor], group: Any) -> None:
    size = dist.get_world_size(group)

    def mean(flat: torch.Tensor) -> None:
        dist.all_reduce(flat, group=group)
        flat /= size

    if size > 1:
        in_one_message(gradients, mean)
