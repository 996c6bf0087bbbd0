"""TeamBatchSampler: select the samples for the batches of each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hookpoint.core.errors import BadStrategy

SEEDS = 2**63


class TeamBatchSampler:
    """Divide the samples of an epoch among all ranks. Each sample is used once, and all ranks have the same number of batches.

    All ranks use the same order. With `shuffle=True`, the chief draws the order in the same way as a single process with the
    global batch size. The chief uses the loader's `generator` or, if the loader has none, torch's global generator.
    `from_chief` broadcasts the order. A call to `begin_pass` makes the next `iter(sampler)` draw a new order. Any other
    `iter(sampler)` uses the order of the last pass and does not communicate. Before the first pass, it uses an order derived
    from `seed`.

    Each `batch_size * size` consecutive samples form a global batch, and each rank gets one slice of it, in rank order. A short
    last batch is split as evenly as possible, so slices in one step differ by at most one sample. If a last batch has fewer
    samples than there are ranks, it is merged into the previous batch. Samples are repeated only if the whole dataset has
    fewer samples than there are ranks, so that each rank has one sample. With `drop_last=True`, a short batch is dropped.

    `start` is the number of samples that were already used in this epoch, by any number of ranks. `set_epoch` begins a new
    epoch.

    >>> for rank in range(2):
    ...     print(list(TeamBatchSampler(10, 2, rank=rank, size=2)))
    [[0, 1], [4, 5], [8]]
    [[2, 3], [6, 7], [9]]
    """

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
        from_chief: Callable[[Any], Any] = lambda drawn: drawn,
    ) -> None:
        if batch_size < 1 or size < 1 or not 0 <= rank < size or not 0 <= start <= max(length, 0):
            got = f"length={length}, batch_size={batch_size}, rank={rank}, size={size}, start={start}"
            raise BadStrategy(f"TeamBatchSampler: invalid {got}.", give="rank < size, 0 <= start <= length, batch_size >= 1")
        self.length, self.batch_size, self.shuffle, self.drop_last = length, batch_size, shuffle, drop_last
        self.rank, self.size, self.seed, self.epoch = rank, size, seed, 0
        self.start, self.first = start, -(-start // (batch_size * size))
        self.generator, self.from_chief = generator, from_chief
        # What the next `iter(sampler)` does if it shuffles. True: draw an order for all ranks. False: draw numbers only to
        # advance this rank's generator. None: draw nothing.
        self.draws: bool | None = False
        self.drawn: int | str | None = None  # the seed or the generator state that determines the order
        self.order: list[int] | None = None  # the order of the samples in this epoch, if it is known

    def set_epoch(self, epoch: int) -> None:
        """Begin a new epoch, which uses all samples."""
        self.epoch, self.start, self.first = epoch, 0, 0
        self.order, self.drawn, self.draws = None, None, False

    def begin_pass(self) -> None:
        """Make the next `iter(sampler)` draw a new order. All ranks must then call `iter(sampler)`."""
        self.draws = True

    def __iter__(self) -> Iterator[list[int]]:
        draws = self.shuffle and self.order is None and self.draws is not None
        if draws:
            drawn = self._draw()
            if self.draws:
                self.drawn, self.draws = self.from_chief(drawn), False
        order = self.indices()
        for number in range(self.first, len(self)):
            begin, end = self._slice(number)
            batch = order[begin:end]
            if len(batch) < self.size:
                batch = (batch * self.size)[: self.size]
            count = len(batch)
            yield batch[self.rank * count // self.size : (self.rank + 1) * count // self.size]
        if draws and self.generator is not None:  # at its end, a RandomSampler draws a permutation that it does not use
            _permuted(self.length, self.generator)

    def __len__(self) -> int:
        """Return the number of batches in the epoch, including those before `start`."""
        full, rest = divmod(self.length - self.start, self.batch_size * self.size)
        has_short = not self.drop_last and (rest >= self.size or (rest > 0 and not full))
        return self.first + full + has_short

    def indices(self) -> list[int]:
        """Return the order of all samples in this epoch, which is the same on all ranks."""
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
        """Draw the same numbers as a RandomSampler at the start of a pass. Return a seed, or the state of the generator."""
        if self.generator is None:
            return int(torch.empty((), dtype=torch.int64).random_())
        state = self.generator.get_state().numpy().tobytes().hex()
        _permuted(self.length, self.generator)
        return state

    def seen(self, batches: int) -> int:
        """Return the number of samples that all ranks together have used after the first `batches` batches of the epoch."""
        return self.length if batches >= len(self) else self.start + (batches - self.first) * self.batch_size * self.size

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is needed to resume in this epoch with any number of ranks."""
        own = {name: getattr(self, name) for name in ("seed", "epoch", "start", "first", "batch_size", "size", "length")}
        order = None if self.order is None else torch.tensor(self.order)
        drawn = {"drawn": self.drawn} if self.draws or self.drawn is not None else {}
        return {**own, "shuffle": self.shuffle, "order": order, **drawn}

    def resume(self, state: Mapping[str, Any], batches: int) -> int:
        """Resume the epoch of an earlier sampler, whose state is `state`, after its first `batches` batches.

        Return how many of this sampler's batches are done. If the batch size or the number of ranks differs, this number is
        computed from the number of samples that were used, and rounded up.
        """
        self.load_order(state)
        self.start, self.first = state["start"], state["first"]
        if (state["size"], state["batch_size"]) == (self.size, self.batch_size):
            return batches
        other = TeamBatchSampler(state["length"], state["batch_size"], size=state["size"])
        other.start, other.first = state["start"], state["first"]
        self.start = other.seen(batches)
        self.first = -(-self.start // (self.batch_size * self.size))
        return self.first

    def load_order(self, state: Mapping[str, Any]) -> None:
        """Load the order of an epoch that has already begun.

        Checkpoints from earlier releases have no "drawn" entry. For these checkpoints, the order is computed from the
        seed and the epoch, and no random numbers are drawn.
        """
        self.seed, self.epoch, self.shuffle = state["seed"], state["epoch"], state["shuffle"]
        self.order = None if state["order"] is None else state["order"].tolist()
        self.drawn = state.get("drawn")
        self.draws = None if "drawn" not in state else self.drawn is None

    def _slice(self, number: int) -> tuple[int, int]:
        size = self.batch_size * self.size
        begin = self.start + (number - self.first) * size
        is_last = number + 1 == len(self) and not self.drop_last
        return begin, self.length if is_last else begin + size


def _permuted(length: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(length, generator=generator, device=generator.device)
