"""World: the number of ranks, and this process's rank on its machine."""

from __future__ import annotations

import os

import torch.distributed as dist


def world_size() -> int:
    """Return the number of ranks. It is read from the process group or, before initialization, from torchrun's variables."""
    if not dist.is_available():
        return 1
    if dist.is_initialized():
        return int(dist.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1")) if "MASTER_ADDR" in os.environ else 1


def local_rank() -> int:
    """Return this process's rank on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))
