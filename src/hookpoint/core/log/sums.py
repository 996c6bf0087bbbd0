"""Sums that do not overflow. Results are bit-identical to float arithmetic, or exact integers where floats would overflow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import fsum, inf


def plus(a: float, b: float) -> float:
    """Return the sum of two numbers. NaN and infinity follow float arithmetic.

    >>> plus(0.1, 0.2), plus(1e308, -inf), plus(1e308, 1e308) == 2 * int(1e308)
    (0.30000000000000004, -inf, True)
    """
    if a - a or b - b:  # at least one operand is not finite, so finite operands do not affect the sum
        return (a if a - a else 0.0) + (b if b - b else 0.0)
    try:
        result = a + b
    except OverflowError:  # one operand is an integer that is too large for a float
        result = inf
    return int(a) + int(b) if result - result else result


def times(value: float, weight: float) -> float:
    """Return the product of a value and a finite weight."""
    product = value * weight
    if not product - product or value - value:
        return product
    (above, below), (more, less) = value.as_integer_ratio(), weight.as_integer_ratio()
    return above * more // (below * less)


def quotient(total: float, weight: float) -> float:
    """Return the mean as a float: a weighted sum divided by the sum of the weights."""
    if isinstance(total, int):
        above, below = weight.as_integer_ratio()
        return total * below / above
    return total / weight


def sum_means(means: Sequence[Sequence[float]]) -> list[float]:
    """Add the states of several means: the totals, the weights, and the weights of values that are not finite."""
    total, weight, bad = (total_of(column) for column in zip(*([*sums, 0.0][:3] for sums in means), strict=True))
    return [total, weight, bad] if bad else [total, weight]


def total_of(numbers: Sequence[float]) -> float:
    """Return an exact sum, rounded once. It is an integer if floats overflow. NaN and infinity behave as in plain addition."""
    try:
        return fsum(numbers)
    except (OverflowError, ValueError):
        return reduce(plus, numbers, 0.0)
