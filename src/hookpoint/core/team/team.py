"""Team: the ranks that train one model together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

Answer = Callable[[], int]


class Team:
    """The rank of this process in a run, and its collective calls. This class itself is a team of one rank.

    All ranks call the same methods in the same order, only from the training thread; values must be JSON types. `data_rank` is
    the index of the data shard, `model_rank` that of the model shard: of each layer, or some of the layers if it `has_stages`.
    A request of a rank takes effect on all ranks `lag` steps later: more than one if ranks need not be at the same step.
    `inexact` is the reason why the team's results are not reproducible, if so. `notes` are those that ranks leave for each
    other, as in StoreNotes; None if not supported.
    """

    rank = local_rank = data_rank = model_rank = 0
    size = data_size = lag = 1
    inexact = ""
    notes: Any = None
    has_stages = False

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order."""
        return [value]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value of one rank."""
        return value

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sums over the ranks with different data, identical on every rank, bit for bit."""
        return list(values)

    def to_chief(self, data: bytes) -> list[bytes]:
        """Send bytes of any length to the chief; return what each rank has sent on the chief, and nothing elsewhere."""
        return [data]

    def start_agreeing(self, number: int) -> Answer:
        """Start computing the maximum of a number over all ranks; return a function that waits for the answer.

        The number has less than 63 bits: no message is cheaper, and one is sent with every step.
        """
        return lambda: number

    def any_of(self, bits: int) -> int:
        """Return the bits that are set on any rank."""
        return bits

    def barrier(self) -> None:
        """Wait until every rank calls this."""

    def close(self) -> None:
        """Release the resources of the team."""


def place_from_environment() -> dict[str, int]:
    """Return the rank, local rank and world size that a launcher has set; without a launcher, those of a single process."""
    variables = {"rank": ("RANK", 0), "local_rank": ("LOCAL_RANK", 0), "world_size": ("WORLD_SIZE", 1)}
    return {name: int(os.environ.get(variable, default)) for name, (variable, default) in variables.items()}
