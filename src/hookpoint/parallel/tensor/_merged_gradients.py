"""Merged gradients: those of processes with different data and parts of one model, as one process would have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _current_graph_task_id as current_graph_task_id
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from hookpoint.parallel.shared.local_shard import here

TOGETHER = 2**22  # numbers that travel in one message, so that a copy of them is small beside the model


class MergedGradients:
    """Make gradients those of the joint batch at the end of each backward, whoever calls it; not while batches are accumulated.

    A gradient of a part is averaged over the processes that have the same part, with other data. One of a parameter that all
    processes have is averaged over all of them: those that share a model compute it from the same numbers, but on a GPU not
    always to the last bit, and copies that have drifted apart are no copies. A parameter that any process has a gradient of
    gets one on all; those that nobody has used keep none.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], mesh: DeviceMesh) -> None:
        self._parameters = list(parameters)
        self._data = mesh.get_group("data")
        self._said = dist.new_group(backend="gloo")
        self._task = -1
        self._is_waiting = False

    def watch(self) -> None:
        """Merge when a backward ends: one that has reached any of the parameters."""
        for parameter in self._parameters:
            is_trained = parameter.requires_grad
            parameter.requires_grad_(True)  # one that is thawed later has its hook, too
            parameter.register_post_accumulate_grad_hook(self._merge_at_end)  # type: ignore[no-untyped-call]
            parameter.requires_grad_(is_trained)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let gradients add up on each process."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def merge(self) -> None:
        has = torch.tensor([one.grad is not None for one in self._parameters], dtype=torch.uint8)
        dist.all_reduce(has, op=dist.ReduceOp.MAX, group=self._said)
        groups: dict[Any, list[torch.Tensor]] = {}
        with torch.no_grad():
            for parameter, is_there in zip(self._parameters, has.tolist(), strict=True):
                if is_there:
                    gradient = _placed(parameter)
                    kind = (is_apart(parameter), gradient.dtype, gradient.device)
                    groups.setdefault(kind, []).append(gradient)
            for (is_part, _, _), gradients in groups.items():
                for several in _portions(gradients):
                    _average(several, self._data if is_part else None)

    def _merge_at_end(self, _: torch.Tensor) -> None:
        # One task is one backward, also where an earlier one has failed on its way, or where it is inside of another.
        task = current_graph_task_id()
        if task != self._task and not self._is_waiting:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self.merge)


def is_apart(tensor: torch.Tensor) -> bool:
    """Say whether each process has another part of a tensor."""
    return isinstance(tensor, DTensor) and any(isinstance(one, Shard) for one in tensor.placements)


def _placed(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return what this process has of a gradient, which then lies as its parameter does."""
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    if isinstance(parameter, DTensor) and isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    if gradient is not parameter.grad:
        parameter.grad = gradient
    return here(gradient)


def _portions(gradients: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    portion: list[torch.Tensor] = []
    for gradient in gradients:
        if portion and sum(one.numel() for one in portion) + gradient.numel() > TOGETHER:
            yield portion
            portion = []
        portion.append(gradient)
    yield portion


def _average(gradients: list[torch.Tensor], group: Any) -> None:
    size = dist.get_world_size(group)
    if size == 1:
        return
    joint = torch.cat([one.reshape(-1) for one in gradients])
    dist.all_reduce(joint, group=group)
    joint /= size
    values_of = torch.split(joint, [one.numel() for one in gradients])
    for gradient, values in zip(gradients, values_of, strict=True):
        gradient.copy_(values.view_as(gradient))
