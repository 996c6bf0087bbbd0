"""Joining: how a process that torchrun started becomes one of a team."""

from __future__ import annotations

import atexit
import os
from functools import cache

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from hookpoint.core.team import Solo, Team
from hookpoint.parallel.gloo_threads import let_rest
from hookpoint.parallel.torch_team import SECONDS, TorchTeam


def joined(*, seconds: float = SECONDS, model_size: int = 1, has_stages: bool = False) -> Team:
    """Return the team of the processes that torch.distributed knows, or that torchrun started; of one where there are none.

    All processes call it at the same place. Where torchrun started them and nobody has initialised torch.distributed, it is
    done here, and undone when the process ends: sharded parameters are of no use without it, also after a run.
    """
    if not dist.is_available():
        return Solo()
    if not dist.is_initialized() and is_shared():
        if local_rank() < torch.cuda.device_count():
            torch.cuda.set_device(local_rank())
        _join("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        atexit.register(_leave)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Solo()
    _rest_at_exit()
    return TorchTeam(seconds=seconds, model_size=model_size, has_stages=has_stages)


def _join(backend: str) -> None:
    """Initialise torch.distributed, apart from what processes have left that torchrun has started before, and restarted.

    Their addresses are in the same store, under the same names: who is the first of the new ones would call the dead.
    """
    store, rank, size = next(rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=rank, world_size=size)


def is_shared() -> bool:
    """Say whether this process is one of several: in a process group of the user's, or started by torchrun."""
    if not dist.is_available():
        return False
    if dist.is_initialized():
        return dist.get_world_size() > 1
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "MASTER_ADDR" in os.environ


def local_rank() -> int:
    """Return which of the processes on this machine this is."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@cache
def _rest_at_exit() -> None:
    """Let threads rest before the interpreter ends, also those of a group that its owner leaves to it."""
    atexit.register(let_rest)
