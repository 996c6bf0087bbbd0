"""Joining: how a process that torchrun started becomes one of a team."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from hookpoint.core.team import Solo, Team
from hookpoint.parallel.torch_team import SECONDS, TorchTeam


def joined(*, seconds: float = SECONDS) -> Team:
    """Return the team of the processes that torch.distributed knows, or that torchrun started; of one where there are none.

    All processes call it at the same place. Where torchrun started them and nobody has initialised torch.distributed, it is
    done here, and stays so.
    """
    if not dist.is_available():
        return Solo()
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1 and "MASTER_ADDR" in os.environ:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return TorchTeam(seconds=seconds) if dist.is_initialized() and dist.get_world_size() > 1 else Solo()
