"""Buffers: what modules keep besides their parameters, the same on every process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.parallel.shared.local_shard import here

COUNTED_ALIKE = "num_batches_tracked"  # every process makes as many forwards


class SharedBuffers:
    """Give every process the chief's buffers, such as the statistics of batch norm, right before each optimizer step.

    Then whoever looks at a model between steps, to validate, average or save it, sees the same one everywhere. One message for
    each type of number that the buffers have; none where there are none.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._modules = list(modules)

    def watch(self, optimizers: Iterable[Any]) -> None:
        for optimizer in optimizers:
            if hasattr(optimizer, "register_step_pre_hook"):
                optimizer.register_step_pre_hook(self._share)

    def share(self) -> None:
        groups: dict[Any, list[torch.Tensor]] = {}
        for module in self._modules:
            for name, buffer in module.named_buffers():
                if not name.endswith(COUNTED_ALIKE):
                    groups.setdefault((buffer.dtype, buffer.device), []).append(here(buffer))
        with torch.no_grad():
            for buffers in groups.values():
                joint = torch.cat([buffer.reshape(-1) for buffer in buffers])
                dist.broadcast(joint, 0)
                if dist.get_rank():
                    values_of = torch.split(joint, [one.numel() for one in buffers])
                    for buffer, values in zip(buffers, values_of, strict=True):
                        buffer.copy_(values.view_as(buffer))

    def _share(self, *_: Any) -> None:
        self.share()
