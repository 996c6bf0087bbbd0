"""World: how many processes there are."""

from __future__ import annotations

import os

import torch.distributed as dist


def world_size() -> int:
    """Return how many processes train together: as torch.distributed knows it, or else as torchrun has told this one."""
    if not dist.is_available():
        return 1
    if dist.is_initialized():
        return int(dist.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1")) if "MASTER_ADDR" in os.environ else 1
