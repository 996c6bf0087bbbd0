"""Ratio: a sum over another, added up where its values are."""

from __future__ import annotations

import math
from typing import Any

from hookpoint.core.run.run import Run


class Ratio:
    """Add up two sums without waiting for a device, and divide them when somebody reads the result.

    Whole numbers are added up as such, others in double precision where the device has it. `empty` is the value of a ratio
    to nothing.

    >>> ratio = Ratio()
    >>> ratio.add(1, 4)
    >>> ratio.add(3, 4)
    >>> float(ratio)
    0.5
    """

    __slots__ = ("_empty", "_sums", "_value")

    def __init__(self, above: Any = 0, below: Any = 0, *, empty: float = math.nan) -> None:
        self._sums: tuple[Any, Any] | None = (above, below)
        self._empty = empty
        self._value = empty

    def add(self, above: Any, below: Any) -> None:
        assert self._sums is not None, "what was read is final"
        self._sums = (self._sums[0] + above, self._sums[1] + below)

    def add_mean(self, value: Any, weight: int) -> None:
        """Add a number, or the mean of an array, with a weight."""
        size = math.prod(getattr(value, "shape", ()))
        if size:
            value = wide(value)
            self.add((value.sum() if hasattr(value, "sum") else value) * (weight / size), weight)

    def share(self, run: Run) -> None:
        """Make it the ratio of what all processes of the run have added up: all of them call this."""
        assert self._sums is not None, "what was read is final"
        self._sums = tuple(run.reduce(one) for one in self._sums)  # type: ignore[assignment]

    def __float__(self) -> float:
        sums = self._sums
        if sums is not None:
            below = float(sums[1])
            self._value = float(sums[0]) / below if below else self._empty
            self._sums = None  # lets go of what is on a device; last, as another thread may be reading too
        return self._value

    def __repr__(self) -> str:
        return f"Ratio({float(self)!r})"


def wide(value: Any) -> Any:
    """Return a value without its graph, and as precise as its device allows: sums of many halves would come to rest."""
    if hasattr(value, "detach"):
        value = value.detach()
        if value.is_floating_point():
            return value.float() if value.device.type == "mps" else value.double()
        return value
    if type(value).__module__ == "numpy" and value.dtype.kind == "f":
        return value.astype("float64")
    return value
