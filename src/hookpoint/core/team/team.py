"""Team: the processes that train one model together. The core knows this protocol only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

Answer = Callable[[], int]


class Notes(Protocol):
    """Notes that processes leave for each other at any time, in any order, from any thread; nobody waits for long."""

    def put(self, note: Mapping[str, Any]) -> bool:
        """Replace the note of this rank; say whether that worked."""

    def read(self) -> list[Mapping[str, Any] | None]:
        """Return the newest note of every rank, in the order of ranks."""


class Team(Protocol):
    """Say who one is among the processes of a run, and talk to the others.

    All ranks call the same methods in the same order, from the training thread only; values are of plain types, as JSON knows
    them. `data_rank` tells who has which part of the data, `model_rank` who has which part of the model: of each layer, or some
    of the layers, where it `has_stages`. What a rank asks for happens `lag` steps later on all; where ranks need not be at the
    same step, more than one. `inexact` says why nobody could repeat what the team does, where that is so.
    """

    rank: int
    local_rank: int
    size: int
    data_rank: int
    data_size: int
    model_rank: int
    has_stages: bool
    lag: int
    inexact: str

    @property
    def notes(self) -> Notes | None:
        """Where processes leave notes for each other while they do not talk; None where they cannot."""

    def gather(self, value: Any) -> list[Any]:
        """Return the value of every rank, in the order of ranks."""

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value that one rank has."""

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sums over the ranks with different data, the same ones on every rank, bit for bit."""

    def to_chief(self, data: bytes) -> list[bytes]:
        """Send the chief some bytes, of any length; return what each rank has sent, there, and nothing elsewhere."""

    def start_agreeing(self, number: int) -> Answer:
        """Begin to find out the largest number that any rank has, and return what waits for the answer; nobody waits here.

        It is one number, of less than 63 bits: no message is cheaper, and one goes out with every step.
        """

    def any_of(self, bits: int) -> int:
        """Return the bits that any rank has set."""

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def close(self) -> None:
        """Let go of what was made for talking."""


class Solo:
    """A team of one, for whom everybody has agreed already."""

    rank = local_rank = data_rank = model_rank = 0
    size = data_size = lag = 1
    inexact = ""
    notes = None
    has_stages = False

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        return value

    def sums(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def to_chief(self, data: bytes) -> list[bytes]:
        return [data]

    def start_agreeing(self, number: int) -> Answer:
        return lambda: number

    def any_of(self, bits: int) -> int:
        return bits

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass


def place_by_environment() -> dict[str, int]:
    """Return the rank, local rank and world size that a launcher has set; of a process on its own, those of one."""
    variables = {"rank": ("RANK", 0), "local_rank": ("LOCAL_RANK", 0), "world_size": ("WORLD_SIZE", 1)}
    return {name: int(os.environ.get(variable, default)) for name, (variable, default) in variables.items()}
