"""BufferSync: keep the buffers of a model identical on all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.parallel.shared.local_shards import by_kind, in_one_message, local_shard

SAME_COUNT = "num_batches_tracked"  # this buffer is equal on all ranks, because all ranks run the same number of forward passes


class BufferSync:
    """Send the chief's buffers, such as batch norm statistics, to all ranks right before each optimizer step.

    Validation, weight averages and checkpoints between steps therefore use the same model state on all ranks. One message is
    sent per dtype, and none if there are no buffers.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._modules = list(modules)

    def watch(self, optimizers: Iterable[Any]) -> None:
        for optimizer in optimizers:
            if hasattr(optimizer, "register_step_pre_hook"):
                optimizer.register_step_pre_hook(self.sync)

    def sync(self, *_: Any) -> None:
        named = (pair for module in self._modules for pair in module.named_buffers())
        with torch.no_grad():
            for buffers in by_kind(local_shard(buffer) for name, buffer in named if not name.endswith(SAME_COUNT)):
                in_one_message(buffers, lambda flat: dist.broadcast(flat, 0), writes=dist.get_rank() > 0)
