"""Init process: join the process group that the script has initialized, or initialize one if torchrun started the ranks."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import rendezvous

from hookpoint.core.team.checked_team import unanswered
from hookpoint.core.team.team import Team
from hookpoint.parallel.team.loopback import ADDRESS, interface_settings, is_one_machine, loopback_store
from hookpoint.parallel.team.torch_team import SECONDS, TorchTeam
from hookpoint.parallel.team.world import local_rank, world_size

GLOO_THREAD = "pt_gloo_runloop"
TASKS = Path("/proc/self/task")
REST_SECONDS = 5.0
CHECKS = 3


def join_team(
    *, seconds: float | None = None, model_size: int = 1, has_stages: bool = False, kind: Callable[..., Team] = TorchTeam
) -> Team:
    """Return the team of all ranks, or a team of one rank for a single process.

    This function is a collective: every rank must call it.

    If torchrun started the ranks and the script has not initialized torch.distributed, this function initializes it. It stays
    initialized until the process exits, because sharded parameters need it even after a run. A rank that waits
    longer than `seconds` for other ranks raises an error. The default is 600 s. In the first wait, when ranks may still be
    preparing data, the default is torch's longer timeout.
    """
    if not dist.is_available():
        return Team()
    if world_size() > 1 and is_one_machine():
        for name, value in interface_settings().items():  # does not override an interface that the user has set
            os.environ.setdefault(name, value)
    if not dist.is_initialized() and world_size() > 1:
        if local_rank() < torch.cuda.device_count():
            torch.cuda.set_device(local_rank())
        _init("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", seconds)
        atexit.register(_destroy)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Team()
    atexit.unregister(let_rest)
    atexit.register(let_rest)  # the user's script may never destroy the process group
    with _answered(dist.get_rank(), dist.get_world_size()):
        return kind(seconds=SECONDS if seconds is None else seconds, model_size=model_size, has_stages=has_stages)


def _init(backend: str, seconds: float | None) -> None:
    """Initialize torch.distributed. After each restart by torchrun, use a new prefix for the keys in the store.

    After a restart, the store still contains the addresses of the previous processes. With the same keys, new ranks would try
    to connect to these addresses.
    """
    store, rank, size = _store()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefixed = dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    with _answered(rank, size):
        prefixed.set(f"rank {rank} is here", "")
        timeout = default_pg_timeout if seconds is None else timedelta(seconds=seconds)
        prefixed.wait([f"rank {number} is here" for number in range(size)], timeout)
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=size)


def _store() -> tuple[Any, int, int]:
    """Return the process group's store, this process's rank and the world size.

    If all ranks are on one machine and torchrun has not created a store, the store listens only on loopback. torch itself would
    open it to the network.
    """
    if not is_one_machine() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store, rank, size = next(rendezvous("env://"))
        return store, rank, size
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if rank == 0:
        return loopback_store(port), rank, size
    return dist.TCPStore(ADDRESS, port, is_master=False, timeout=default_pg_timeout), rank, size  # type: ignore[attr-defined]


@contextmanager
def _answered(rank: int, size: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise unanswered(rank, size, "the setup of a run (fit, validate, predict or Loop)", error) from error


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def let_rest(seconds: float = REST_SECONDS) -> None:
    """Wait up to `seconds` for all gloo threads to go to sleep.

    A thread reports an operation as done before it releases its tensors, and needs the GIL to release them. If the interpreter
    exits in between, Python ends the thread inside C++ code and the process aborts. Destroying the process group
    does not always end its threads, because the model often keeps a reference to the group. If the system does not report
    thread states, this function returns almost immediately.
    """
    deadline, calm = time.monotonic() + seconds, 0
    while calm < CHECKS and time.monotonic() < deadline:
        time.sleep(0.001)  # releases the GIL, which the threads may be waiting for
        calm = calm + 1 if all(state == "S" for state in gloo_states()) else 0


def gloo_states() -> list[str]:
    """Return the state of each gloo thread as a letter from Linux's `/proc`: R for running or runnable, S for sleeping."""
    found = []
    for task in TASKS.glob("*/stat"):
        with suppress(OSError):  # the thread may have ended
            name, _, facts = task.read_text().partition("(")[2].rpartition(")")
            found += [facts.split()[0]] if name == GLOO_THREAD else []
    return found
