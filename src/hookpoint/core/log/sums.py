"""Sums that do not overflow: plain float arithmetic, bit for bit, and an exact integer where no float can hold the sum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import fsum, inf


def plus(one: float, other: float) -> float:
    """Return the sum of two numbers. NaN and infinity are added as floats are.

    >>> plus(0.1, 0.2), plus(1e308, -inf), plus(1e308, 1e308) == 2 * int(1e308)
    (0.30000000000000004, -inf, True)
    """
    if one - one or other - other:  # NaN: one of them is not finite, and the other makes no difference
        return (one if one - one else 0.0) + (other if other - other else 0.0)
    try:
        made = one + other
    except OverflowError:  # one of them is an integer that no float can hold
        made = inf
    return int(one) + int(other) if made - made else made


def times(value: float, weight: float) -> float:
    """Return the product of a value and a finite weight."""
    made = value * weight
    if not made - made or value - value:
        return made
    (above, below), (more, less) = value.as_integer_ratio(), weight.as_integer_ratio()
    return above * more // (below * less)


def quotient(total: float, weight: float) -> float:
    """Return a sum divided by its weight, as a float."""
    if isinstance(total, int):
        above, below = weight.as_integer_ratio()
        return total * below / above
    return total / weight


def added(sums: Sequence[Sequence[float]]) -> list[float]:
    """Return the sums of several means together: the total, the weight, and the weight of values that are not finite."""
    total, weight, bad = (total_of(column) for column in zip(*([*one, 0.0][:3] for one in sums), strict=True))
    return [total, weight, bad] if bad else [total, weight]


def total_of(numbers: Sequence[float]) -> float:
    """Return an exact sum, rounded once; NaN and infinity where plain addition makes them; an integer where floats overflow."""
    try:
        return fsum(numbers)
    except (OverflowError, ValueError):
        return reduce(plus, numbers, 0.0)
