"""TorchTeam: a team of all torch.distributed ranks."""

from __future__ import annotations

import ctypes
import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from math import fsum
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.team import Answer, Team
from hookpoint.parallel.team._store_notes import StoreNotes
from hookpoint.parallel.team.world import local_rank

SHORT = 512  # size of a short message in bytes
SECONDS = 600.0  # how long to wait for other ranks before raising an error
LAST_SECONDS = 5.0  # how long to wait for a result that is no longer needed
MESSAGES, AGREEMENT = range(2)


class TorchTeam(Team):
    """Communicate over gloo groups that are separate from the training groups.

    Creating a team is a collective call, so all ranks must create it together. Values are sent as JSON, never as pickles. Each
    group of `model_size` consecutive ranks shares one shard of the data. The ranks in a group hold different shards of the
    model.
    """

    def __init__(self, *, seconds: float = SECONDS, model_size: int = 1, has_stages: bool = False) -> None:
        if not dist.is_initialized():
            raise BadStrategy("torch.distributed is not initialized.", call="torch.distributed.init_process_group()")
        self.rank, self.size, self.local_rank = dist.get_rank(), dist.get_world_size(), local_rank()
        self.data_rank, self.model_rank = divmod(self.rank, model_size)
        self.data_size = self.size // model_size
        self.has_stages = has_stages
        self.seconds = seconds
        self.notes = StoreNotes.in_default_store(self.rank, self.size)
        # Other messages may be sent while an agreement is pending, so agreements need their own group.
        self._groups: list[Any] = [gloo_group(seconds) for _ in range(2)]
        self._pending: deque[Any] = deque()  # pending agreements, oldest first

    def _group(self, number: int = MESSAGES) -> Any:
        if not self._groups:
            raise BadStrategy("the process group is closed; the run has ended.", call="collectives inside the run")
        return self._groups[number]

    def gather(self, value: Any) -> list[Any]:
        data = json.dumps(value, allow_nan=True).encode()
        messages = self._exchange(len(data).to_bytes(8, "big") + data, SHORT)
        sizes = [int.from_bytes(message[:8], "big") for message in messages]
        if max(sizes) > SHORT - 8:  # most messages are short and need only one round
            messages = self._exchange(bytes(8) + data, max(sizes) + 8)
        return [json.loads(message[8 : 8 + size]) for message, size in zip(messages, sizes, strict=True)]

    def _exchange(self, data: bytes, length: int) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data[:length].ljust(length, b"\0")), dtype=torch.uint8)
        pieces = [torch.empty(length, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(pieces, mine, group=self._group())
        return [piece.numpy().tobytes() for piece in pieces]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        return self.gather(value if self.rank == source else None)[source]

    def sums(self, values: Sequence[float]) -> list[float]:
        gathered = self.gather([float(value) for value in values])
        return [fsum(column) for column in zip(*gathered[:: self.size // self.data_size], strict=True)]

    def to_chief(self, data: bytes) -> list[bytes]:
        sizes = self.gather(len(data))
        mine = torch.frombuffer(bytearray(data.ljust(max(1, *sizes), b"\0")), dtype=torch.uint8)
        pieces = [torch.zeros_like(mine) for _ in sizes] if self.rank == 0 else None
        dist.gather(mine, pieces, dst=0, group=self._group())
        return [piece[:size].numpy().tobytes() for piece, size in zip(pieces or (), sizes, strict=False)]

    def start_agreeing(self, number: int) -> Answer:
        value = torch.tensor([number])
        work = dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self._group(AGREEMENT), async_op=True)
        self._pending.append(work)

        def answer() -> int:
            assert work is not None
            self._pending.popleft()
            work.wait()
            return int(value)

        return answer

    def any_of(self, bits: int) -> int:
        value = torch.tensor([bits])
        dist.all_reduce(value, op=dist.ReduceOp.BOR, group=self._group())
        return int(value)

    def barrier(self) -> None:
        dist.barrier(group=self._group())

    def close(self) -> None:
        """Destroy the groups, so that their threads end now. At interpreter exit, running threads would abort the process.

        After a failure, an agreement may still be pending. In that case, wait a short time for the agreement. If it is still
        pending after that, never free its objects. Freeing them would block until the other ranks respond, and the other ranks
        detect the failure only when the groups are destroyed.
        """
        works, self._pending = self._pending, deque()
        groups, self._groups = self._groups, []
        are_done = all(map(_is_done, works))
        for group in groups:
            dist.destroy_process_group(group)
        if not are_done:
            ctypes.pythonapi.Py_IncRef(
                ctypes.py_object((works, groups))
            )  # never free these objects, not even at interpreter exit


def gloo_group(seconds: float | None = None) -> Any:
    """Create a gloo group of all ranks, and return it when all ranks have connected to each other.

    Without the barrier, a rank that raises an error after this would close its sockets while other ranks are still connecting.
    """
    group = dist.new_group(backend="gloo", timeout=None if seconds is None else timedelta(seconds=seconds))
    dist.barrier(group=group)
    return group


def _is_done(work: Any) -> bool:
    with suppress(RuntimeError):  # the work timed out, or the other ranks have exited
        work.wait(timedelta(seconds=LAST_SECONDS))
    return bool(work.is_completed())
