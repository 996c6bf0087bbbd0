"""TorchTeam: the processes of torch.distributed as a team."""

from __future__ import annotations

import ctypes
import json
import os
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from math import fsum
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.team import Answer
from hookpoint.parallel.team._store_notes import StoreNotes

SHORT = 512  # bytes
SECONDS = 600.0  # how long to wait for the others, before it is said that one is missing
LAST_SECONDS = 5.0  # how long to wait for an answer that nobody wants any more


class TorchTeam:
    """Talk over a gloo group of one's own, beside whatever the training itself talks over.

    Making one is a collective call: all ranks make theirs at the same place. Values travel as JSON, never as pickles. Each
    `model_size` ranks in a row have one part of the data, and different parts of the model.
    """

    lag = 1
    inexact = ""

    def __init__(self, *, seconds: float = SECONDS, model_size: int = 1, has_stages: bool = False) -> None:
        if not dist.is_initialized():
            raise BadStrategy("torch.distributed is not initialised.", call="torch.distributed.init_process_group()")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.data_rank, self.model_rank = divmod(self.rank, model_size)
        self.data_size = self.size // model_size
        self.has_stages = has_stages
        self.seconds = seconds
        self.notes = StoreNotes.in_default_store(self.rank, self.size)
        wait = timedelta(seconds=seconds)
        # Two of them: answers are on their way while others talk.
        self._groups: list[Any] = [dist.new_group(backend="gloo", timeout=wait) for _ in range(2)]
        self._under_way: deque[Any] = deque()  # what is on its way, in the order of asking, which is that of the answers

    @property
    def _gloo_group(self) -> Any:
        return self._group(0)

    @property
    def _agree(self) -> Any:
        return self._group(1)

    def _group(self, number: int) -> Any:
        if not self._groups:
            raise BadStrategy("the processes have parted: their run is over.", talk="to the others inside of it")
        return self._groups[number]

    def gather(self, value: Any) -> list[Any]:
        data = json.dumps(value, allow_nan=True).encode()
        said = self._exchange(len(data).to_bytes(8, "big") + data, SHORT)
        sizes = [int.from_bytes(one[:8], "big") for one in said]
        if max(sizes) > SHORT - 8:  # what is short, as most of it is, goes in one round
            said = self._exchange(bytes(8) + data, max(sizes) + 8)
        return [json.loads(one[8 : 8 + size]) for one, size in zip(said, sizes, strict=True)]

    def _exchange(self, data: bytes, length: int) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data[:length].ljust(length, b"\0")), dtype=torch.uint8)
        pieces = [torch.empty(length, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(pieces, mine, group=self._gloo_group)
        return [piece.numpy().tobytes() for piece in pieces]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        data = json.dumps(value, allow_nan=True).encode() if self.rank == source else b""
        size = torch.tensor([len(data)])
        dist.broadcast(size, source, group=self._gloo_group)
        piece = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == source:
            piece = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(piece, source, group=self._gloo_group)
        return json.loads(bytes(piece.tolist()))

    def sums(self, values: Sequence[float]) -> list[float]:
        mine = torch.tensor(list(values), dtype=torch.float64)
        pieces = [torch.zeros_like(mine) for _ in range(self.size)]
        dist.all_gather(pieces, mine, group=self._gloo_group)
        step = self.size // self.data_size
        return [fsum(column) for column in zip(*(piece.tolist() for piece in pieces[::step]), strict=True)]

    def to_chief(self, data: bytes) -> list[bytes]:
        sizes = self.gather(len(data))
        mine = torch.zeros(max(max(sizes), 1), dtype=torch.uint8)
        if data:
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        pieces = [torch.zeros_like(mine) for _ in sizes] if self.rank == 0 else None
        dist.gather(mine, pieces, dst=0, group=self._gloo_group)
        return [piece[:size].numpy().tobytes() for piece, size in zip(pieces or (), sizes, strict=False)]

    def start_agreeing(self, number: int) -> Answer:
        asked = torch.tensor([number])
        work = dist.all_reduce(asked, op=dist.ReduceOp.MAX, group=self._agree, async_op=True)
        self._under_way.append(work)

        def answer() -> int:
            assert work is not None
            self._under_way.popleft()
            work.wait()
            return int(asked)

        return answer

    def any_of(self, bits: int) -> int:
        asked = torch.tensor([bits])
        dist.all_reduce(asked, op=dist.ReduceOp.BOR, group=self._gloo_group)
        return int(asked)

    def barrier(self) -> None:
        dist.barrier(group=self._gloo_group)

    def close(self) -> None:
        """Leave the groups, whose threads end here and not with the interpreter, which they would abort.

        After a failure an answer may still be on its way. It is waited for, but not for long: then its thread stays as it is,
        for whoever ends it has to wait for the others. These notice that nobody answers any more when the groups are let go of.
        """
        works, self._under_way = self._under_way, deque()
        groups, self._groups = self._groups, []
        are_over = all(map(_is_over, works))
        for one in groups:
            dist.destroy_process_group(one)
        if not are_over:
            _keep_for_ever((works, groups))


def _is_over(work: Any) -> bool:
    try:
        work.wait(timedelta(seconds=LAST_SECONDS))
    except RuntimeError:  # nobody came, or the others are gone
        pass
    return bool(work.is_completed())


def _keep_for_ever(thing: Any) -> None:
    """Keep a thing also from the end of the interpreter, which would wait in it for other processes."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
