"""Joining: how a process that torchrun started becomes one of a team."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import rendezvous

from hookpoint.core.team.checked_team import unanswered
from hookpoint.core.team.team import Solo, Team
from hookpoint.parallel.team._gloo_threads import let_rest
from hookpoint.parallel.team.loopback import ADDRESS, interface_settings, is_one_machine, loopback_store
from hookpoint.parallel.team.torch_team import SECONDS, TorchTeam


def joined(*, seconds: float | None = None, model_size: int = 1, has_stages: bool = False) -> Team:
    """Return the team of the processes that torch.distributed knows, or that torchrun started; of one where there are none.

    All processes call it at the same place. Where torchrun started them and nobody has initialised torch.distributed, it is
    done here, and undone when the process ends: sharded parameters are of no use without it, also after a run. Who waits
    longer than `seconds` for the others says so; without it, and the first time, when they may prepare data, as long as torch.
    """
    if not dist.is_available():
        return Solo()
    if is_shared() and is_one_machine():
        _stay_on_loopback()
    if not dist.is_initialized() and is_shared():
        if local_rank() < torch.cuda.device_count():
            torch.cuda.set_device(local_rank())
        _join("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", seconds)
        atexit.register(_leave)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Solo()
    _rest_at_exit()
    with _answered(dist.get_rank(), dist.get_world_size()):
        return TorchTeam(seconds=SECONDS if seconds is None else seconds, model_size=model_size, has_stages=has_stages)


def _join(backend: str, seconds: float | None) -> None:
    """Initialise torch.distributed, apart from what processes have left that torchrun has started before, and restarted.

    Their addresses are in the same store, under the same names: who is the first of the new ones would call the dead.
    """
    store, rank, size = _store()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    with _answered(rank, size):
        own.set(f"rank {rank} is here", "")
        wait = default_pg_timeout if seconds is None else timedelta(seconds=seconds)
        own.wait([f"rank {number} is here" for number in range(size)], wait)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size)


def _store() -> tuple[Any, int, int]:
    """Return the store that the processes meet in, the rank of this one, and how many there are.

    torch would open one to the network where torchrun has not made it, also on one machine.
    """
    if not is_one_machine() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store, rank, size = next(rendezvous("env://"))
        return store, rank, size
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if rank == 0:
        return loopback_store(port), rank, size
    return dist.TCPStore(ADDRESS, port, is_master=False, timeout=default_pg_timeout), rank, size  # type: ignore[attr-defined]


def _stay_on_loopback() -> None:
    """Open no socket to the network, unless the user has named an interface."""
    for name, value in interface_settings().items():
        os.environ.setdefault(name, value)


@contextmanager
def _answered(rank: int, size: int) -> Iterator[None]:
    """Say what this process was waiting for, where the others do not come."""
    try:
        yield
    except RuntimeError as error:
        raise unanswered(rank, size, "the meeting that each fit, validate, predict and Loop begins with", error) from error


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
