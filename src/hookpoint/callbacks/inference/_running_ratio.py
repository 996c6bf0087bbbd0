"""RunningRatio: the ratio of two sums, which stay on the device until the result is read."""

from __future__ import annotations

import math
from typing import Any

from hookpoint.core.run.run import Run


class RunningRatio:
    """Accumulate two sums without waiting for a device; divide them when the result is read.

    Integers are added exactly, and floats in double precision if the device supports it. `empty` is the result if the
    denominator is 0.

    >>> ratio = RunningRatio()
    >>> ratio.add(1, 4)
    >>> ratio.add(3, 4)
    >>> float(ratio)
    0.5
    """

    __slots__ = ("_empty", "_sums", "_value")

    def __init__(self, numerator: Any = 0, denominator: Any = 0, *, empty: float = math.nan) -> None:
        self._sums: tuple[Any, Any] | None = (numerator, denominator)
        self._empty = self._value = empty

    def add(self, numerator: Any, denominator: Any) -> None:
        assert self._sums is not None, "the result has already been read"
        self._sums = (self._sums[0] + numerator, self._sums[1] + denominator)

    def add_mean(self, value: Any, weight: int) -> None:
        """Add `value * weight` to the numerator and `weight` to the denominator. If `value` is an array, its mean is used."""
        size = math.prod(getattr(value, "shape", ()))
        if size:
            value = to_double(value)
            self.add((value.sum() if hasattr(value, "sum") else value) * (weight / size), weight)

    def share(self, run: Run) -> None:
        """Add up the sums from all ranks. This is a collective call."""
        assert self._sums is not None, "the result has already been read"
        self._sums = (run.reduce(self._sums[0]), run.reduce(self._sums[1]))

    def __float__(self) -> float:
        sums = self._sums
        if sums is not None:
            denominator = float(sums[1])
            self._value = float(sums[0]) / denominator if denominator else self._empty
            self._sums = None  # frees device memory; assigned after _value, because another thread may call float()
        return self._value

    def __repr__(self) -> str:
        return f"RunningRatio({float(self)!r})"


def to_double(value: Any) -> Any:
    """Detach a value and convert it to double precision if possible, because half-precision sums stop growing."""
    if hasattr(value, "detach"):
        value = value.detach()
        if not value.is_floating_point():
            return value
        return value.float() if value.device.type == "mps" else value.double()
    return value.astype("float64") if type(value).__module__ == "numpy" and value.dtype.kind == "f" else value
