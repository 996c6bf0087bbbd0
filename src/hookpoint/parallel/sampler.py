"""TeamBatchSampler: which samples each process of a team has in its batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hookpoint.core.errors import BadLoop, text

SEEDS = 2**63


class TeamBatchSampler:
    """Share one order of the samples among processes: every sample once in an epoch, as many batches for each process.

    All processes know the same order: that of the data, or for `shuffle` one that comes from `seed` and the epoch alone. The
    next `batch_size * size` samples of it are a joint batch, of which each process has its slice, in the order of ranks. The
    last joint batch may be short, and is shared as evenly as can be: batches of one step differ by one sample at most. Where it
    is too short for each process to have one, it is joined to the one before; only data with fewer samples than processes is
    repeated, until each has one. With `drop_last` a short one is left out.

    `start` is how many samples of the epoch were seen before, by a team of any size. `set_epoch` begins another epoch.

    >>> for rank in range(2):
    ...     print(list(TeamBatchSampler(10, 2, rank=rank, size=2)))
    [[0, 1], [4, 5], [8]]
    [[2, 3], [6, 7], [9]]
    """

    # No dict: its numbers are no counters that a run would find and put back one by one.
    __slots__ = (
        "batch_size",
        "drop_last",
        "epoch",
        "first",
        "length",
        "order",
        "origin",
        "rank",
        "seed",
        "shuffle",
        "size",
        "start",
    )

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        size: int = 1,
        start: int = 0,
        drop_last: bool = False,
        origin: Any = None,
    ) -> None:
        if batch_size < 1 or size < 1 or not 0 <= rank < size or not 0 <= start <= max(length, 0):
            given = f"length={length}, batch_size={batch_size}, rank={rank}, size={size}, start={start}"
            raise BadLoop(text(f"TeamBatchSampler({given}) means nothing.", give="rank below size, start up to length"))
        self.length, self.batch_size, self.shuffle, self.drop_last = length, batch_size, shuffle, drop_last
        self.rank, self.size, self.seed, self.epoch = rank, size, seed, 0
        self.start, self.first = start, 0
        self.order: list[int] | None = None  # of this epoch, where it is another's
        self.origin = origin  # gives the order that one process alone would see
        self.first = len(self) - self._joint_batches(length - start)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, with all of its samples."""
        self.epoch, self.start, self.first, self.order = epoch, 0, 0, None

    def __iter__(self) -> Iterator[list[int]]:
        order = self.indices()
        for number in range(self.first, len(self)):
            begin, end = self._slice(number)
            joint = order[begin:end]
            if len(joint) < self.size:
                joint = (joint * self.size)[: self.size]
            many = len(joint)
            yield joint[self.rank * many // self.size : (self.rank + 1) * many // self.size]

    def __len__(self) -> int:
        """Return how many batches a whole epoch has."""
        return self._joint_batches(self.length)

    def indices(self) -> list[int]:
        """Return the order of all samples in this epoch, the same for every process."""
        if self.order is not None:
            return self.order
        if not self.shuffle:
            return list(range(self.length))
        generator = torch.Generator().manual_seed((self.seed + self.epoch) % SEEDS)
        return torch.randperm(self.length, generator=generator).tolist()

    def seen(self, batches: int) -> int:
        """Return how many samples the team has seen when so many batches of the epoch are done."""
        return self.length if batches >= len(self) else self.start + (batches - self.first) * self.batch_size * self.size

    def state_dict(self) -> dict[str, Any]:
        """Return what it takes to go on in this epoch, by a team of any size."""
        own = {name: getattr(self, name) for name in ("seed", "epoch", "start", "first", "batch_size", "size", "length")}
        order = None if self.order is None else torch.tensor(self.order)
        return {**own, "shuffle": self.shuffle, "order": order}

    def go_on(self, state: Mapping[str, Any], batches: int) -> int:
        """Go on in the epoch of a team that had done so many batches of it; return how many batches that is for this one."""
        self.seed, self.epoch, self.shuffle = state["seed"], state["epoch"], state["shuffle"]
        self.order = None if state["order"] is None else state["order"].tolist()
        self.start, self.first = state["start"], state["first"]
        if (state["size"], state["batch_size"]) == (self.size, self.batch_size):
            return batches
        other = TeamBatchSampler(state["length"], state["batch_size"], size=state["size"])
        other.start, other.first = state["start"], state["first"]
        return self.begin_at(other.seen(batches))

    def begin_at(self, start: int, order: list[int] | None = None) -> int:
        """Leave out the first so many samples of the epoch, in an order that is given; return how many batches are done."""
        if order is not None:
            self.order = order
        self.start = start
        self.first = len(self) - self._joint_batches(self.length - start)
        return self.first

    def _joint_batches(self, samples: int) -> int:
        full, rest = divmod(samples, self.batch_size * self.size)
        if self.drop_last:
            return full
        return full + (rest >= self.size or (rest > 0 and not full))

    def _slice(self, number: int) -> tuple[int, int]:
        joint = self.batch_size * self.size
        begin = self.start + (number - self.first) * joint
        is_last = number + 1 == len(self) and not self.drop_last
        return begin, self.length if is_last else begin + joint
