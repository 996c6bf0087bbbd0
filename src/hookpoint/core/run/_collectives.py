"""Together: what a run knows of the other processes that train the same model, and how it talks to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from typing import Any, Literal

from hookpoint.core.errors import BadLoop, text

Op = Literal["sum", "mean", "max", "min"]
OPS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": fsum,
    "mean": lambda values: fsum(values) / len(values),
    "max": max,
    "min": min,
}


class Together:
    """The places of this process, and words with the others. Each of these calls is made by all of them, or by none.

    A callback that calls one of them says `collective = True`. In one process each returns what it was given.
    """

    __slots__ = ()

    @property
    def is_chief(self: Any) -> bool:
        """Whether this process prints, prompts, and writes files."""
        return bool(self.rank == 0)

    @property
    def data_rank(self: Any) -> int:
        """Which part of the data this process has."""
        return int(self.team.data_rank)

    @property
    def model_rank(self: Any) -> int:
        """Which part of the model this process has."""
        return int(self.team.model_rank)

    def reduce(self: Any, value: Any, op: Op = "sum") -> float:
        """Return the sum of a number over the processes with different data; or the mean, the largest, the smallest.

        Waits for the device of a tensor, and for the others; the answer is the same everywhere, bit for bit.
        """
        if op not in OPS:
            raise BadLoop(text(f"run.reduce() knows no {op!r}.", choose=", ".join(map(repr, OPS))))
        return OPS[op](
            [one for one, part in _said(self, f"run.reduce(op={op!r})", [float(value), self.model_rank]) if part == 0]
        )

    def agree(self: Any, flag: bool) -> bool:
        """Return whether any process says so."""
        return any(_said(self, "run.agree()", bool(flag)))

    def gather(self: Any, value: Any) -> list[Any]:
        """Return what each process has, in the order of ranks; it travels as JSON."""
        return _said(self, "run.gather()", value)

    def broadcast(self: Any, value: Any, source: int = 0) -> Any:
        """Return what one process has: numbers, texts, None, lists and dicts of them. It travels as JSON."""
        return _said(self, f"run.broadcast(source={source})", value if self.rank == source else None)[source]


def _said(run: Any, what: str, value: Any) -> list[Any]:
    agreement = run._loop.agreement
    return [value] if agreement is None else agreement.talk.gather(value, what)
