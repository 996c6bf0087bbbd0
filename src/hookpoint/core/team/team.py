"""Team: the ranks that train one model together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

Answer = Callable[[], int]


class Team:
    """The rank of this process in a run, and methods for collective calls. The base class is a team with one rank.

    All ranks must call the same methods in the same order, and only from the training thread. Values must be JSON types.
    `data_rank` is the index of this rank's data shard, and `model_rank` the index of its model shard. A model shard is part of
    each layer or, with `has_stages`, some of the layers. A request from one rank takes effect on all ranks `lag` steps later.
    `lag` is greater than 1 if ranks can be at different steps. `inexact` is the reason why the team's results are not
    reproducible, or "" if they are. `notes` is an object such as StoreNotes, through which ranks leave short messages for each
    other. It may be None.
    """

    rank = local_rank = data_rank = model_rank = 0
    size = data_size = lag = 1
    inexact = ""
    notes: Any = None
    has_stages = False

    def gather(self, value: Any) -> list[Any]:
        """Return the values that all ranks pass, in rank order."""
        return [value]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value that the rank `source` passes. The result is the same on all ranks."""
        return value

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sum each value over all ranks. The result is bit-identical on all ranks.

        If several ranks share a data shard, the sums include the values of only one of these ranks.
        """
        return list(values)

    def to_chief(self, data: bytes) -> list[bytes]:
        """Send bytes of any length to the chief. Return what each rank sent, or an empty list on ranks other than the chief."""
        return [data]

    def start_agreeing(self, number: int) -> Answer:
        """Start computing the maximum of a number over all ranks. Return a function that waits for the result.

        The number must fit in 62 bits. Ranks exchange such a number at every step, so the message must be as cheap as possible.
        """
        return lambda: number

    def any_of(self, bits: int) -> int:
        """Return the bits that are set on at least one rank."""
        return bits

    def barrier(self) -> None:
        """Wait until every rank calls this."""

    def close(self) -> None:
        """Release the team's resources."""


def place_from_environment() -> dict[str, int]:
    """Return the rank, local rank and world size from the launcher's environment variables. Default: a single process."""
    variables = {"rank": ("RANK", 0), "local_rank": ("LOCAL_RANK", 0), "world_size": ("WORLD_SIZE", 1)}
    return {name: int(os.environ.get(variable, default)) for name, (variable, default) in variables.items()}
