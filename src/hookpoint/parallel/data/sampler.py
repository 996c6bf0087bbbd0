"""TeamBatchSampler: which samples each process of a team has in its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hookpoint.core.errors import BadStrategy

SEEDS = 2**63


class TeamBatchSampler:
    """Share one order of the samples among processes: every sample once in an epoch, as many batches for each process.

    All processes know the same order. With `shuffle`, the chief draws it as one process with the joint batch size would: from
    the loader's `generator`, or else from torch's. `share` passes what was drawn on to the others. A pass draws only after
    `begin_pass`; any other iteration gets the order of the last pass, or before the first one an order from `seed`, and waits
    for nobody.

    The next `batch_size * size` samples are a joint batch, of which each process has its slice, in the order of ranks. The
    last joint batch may be short, and is shared as evenly as possible: batches of one step differ by one sample at most. If it
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
        "drawn",
        "draws",
        "drop_last",
        "epoch",
        "first",
        "generator",
        "length",
        "order",
        "rank",
        "seed",
        "share",
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
        generator: torch.Generator | None = None,
        share: Callable[[Any], Any] = lambda drawn: drawn,
    ) -> None:
        if batch_size < 1 or size < 1 or not 0 <= rank < size or not 0 <= start <= max(length, 0):
            given = f"length={length}, batch_size={batch_size}, rank={rank}, size={size}, start={start}"
            raise BadStrategy(f"TeamBatchSampler({given}) means nothing.", give="rank below size, start up to length")
        self.length, self.batch_size, self.shuffle, self.drop_last = length, batch_size, shuffle, drop_last
        self.rank, self.size, self.seed, self.epoch = rank, size, seed, 0
        self.start, self.first = start, -(-start // (batch_size * size))
        self.generator, self.share = generator, share
        self.draws: bool | None = False  # True: for all processes; False: for this one; None: not at all
        self.drawn: int | str | None = None  # the seed of the order, or the state of the generator that it is drawn from
        self.order: list[int] | None = None  # of this epoch, if it is known as it is

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, with all of its samples."""
        self.epoch, self.start, self.first = epoch, 0, 0
        self.order, self.drawn, self.draws = None, None, False

    def begin_pass(self) -> None:
        """Let the next iteration draw a new order for all processes, which have to iterate too."""
        self.draws = True

    def __iter__(self) -> Iterator[list[int]]:
        draws = self.shuffle and self.order is None and self.draws is not None
        if draws:
            drawn = self._draw()
            if self.draws:
                self.drawn, self.draws = self.share(drawn), False
        order = self.indices()
        for number in range(self.first, len(self)):
            begin, end = self._slice(number)
            joint = order[begin:end]
            if len(joint) < self.size:
                joint = (joint * self.size)[: self.size]
            many = len(joint)
            yield joint[self.rank * many // self.size : (self.rank + 1) * many // self.size]
        if draws and self.generator is not None:  # a RandomSampler draws once more at its end
            _permuted(self.length, self.generator)

    def __len__(self) -> int:
        """Return how many batches the epoch has: those before `start`, and those that follow."""
        return self.first + self._joint_batches(self.length - self.start)

    def indices(self) -> list[int]:
        """Return the order of all samples in this epoch, the same for every process."""
        if self.order is not None:
            return self.order
        if not self.shuffle:
            return list(range(self.length))
        if isinstance(self.drawn, str):
            generator = torch.Generator("cpu" if self.generator is None else self.generator.device)
            generator.set_state(torch.frombuffer(bytearray.fromhex(self.drawn), dtype=torch.uint8))
        else:
            seed = (self.seed + self.epoch) % SEEDS if self.drawn is None else self.drawn
            generator = torch.Generator().manual_seed(seed)
        return _permuted(self.length, generator).tolist()

    def _draw(self) -> int | str:
        """Draw what a RandomSampler draws when a pass begins, and return what the order comes from."""
        if self.generator is None:
            return int(torch.empty((), dtype=torch.int64).random_())
        state = self.generator.get_state().numpy().tobytes().hex()
        _permuted(self.length, self.generator)
        return state

    def seen(self, batches: int) -> int:
        """Return how many samples the team has seen when so many batches of the epoch are done."""
        return self.length if batches >= len(self) else self.start + (batches - self.first) * self.batch_size * self.size

    def state_dict(self) -> dict[str, Any]:
        """Return what it takes to go on in this epoch, by a team of any size."""
        own = {name: getattr(self, name) for name in ("seed", "epoch", "start", "first", "batch_size", "size", "length")}
        order = None if self.order is None else torch.tensor(self.order)
        drawn = {"drawn": self.drawn} if self.draws or self.drawn is not None else {}
        return {**own, "shuffle": self.shuffle, "order": order, **drawn}

    def go_on(self, state: Mapping[str, Any], batches: int) -> int:
        """Go on in the epoch of a team that had done so many batches of it; return how many batches that is for this one.

        If these batches have another size, the samples that were seen count as the number of batches they fill, rounded up.
        """
        self.keep_order(state)
        self.start, self.first = state["start"], state["first"]
        if (state["size"], state["batch_size"]) == (self.size, self.batch_size):
            return batches
        other = TeamBatchSampler(state["length"], state["batch_size"], size=state["size"])
        other.start, other.first = state["start"], state["first"]
        self.start = other.seen(batches)
        self.first = -(-self.start // (self.batch_size * self.size))
        return self.first

    def keep_order(self, state: Mapping[str, Any]) -> None:
        """Take the order of an epoch that was begun before.

        Without "drawn", as in checkpoints of earlier releases, it comes from seed and epoch, and nothing is drawn for it.
        """
        self.seed, self.epoch, self.shuffle = state["seed"], state["epoch"], state["shuffle"]
        self.order = None if state["order"] is None else state["order"].tolist()
        self.drawn = state.get("drawn")
        self.draws = None if "drawn" not in state else self.drawn is None

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


def _permuted(length: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(length, generator=generator, device=generator.device)
