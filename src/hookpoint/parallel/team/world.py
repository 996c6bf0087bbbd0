"""World: the number of ranks, and this process's local rank."""

from __future__ import annotations

import os

import torch.distributed as dist


def world_size() -> int:
    """Return the number of ranks.

    The number comes from the process group. Before the process group is initialized, the number comes from the environment
    variables that torchrun sets.
    """
    if not dist.is_available():
        return 1
    if dist.is_initialized():
        return int(dist.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1")) if "MASTER_ADDR" in os.environ else 1


def local_rank() -> int:
    """Return this process's local rank, which is its rank among the processes on the same machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))
