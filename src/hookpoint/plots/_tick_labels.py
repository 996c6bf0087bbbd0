"""Tick labels: short numbers and names for axes and legends."""

from __future__ import annotations

from itertools import pairwise
from math import floor, isfinite, log10


def number_text(value: float) -> str:
    """Format a value with four significant digits.

    >>> [number_text(value) for value in (0.0123456, 1234567.0, 1e-9, 3.0, 0.0)]
    ['0.01235', '1.235e6', '1e-9', '3', '0']
    """
    return _short_exponent(f"{value:.4g}")


def compact(value: float) -> str:
    """Format a count with a suffix for thousands, millions or billions.

    >>> [compact(value) for value in (0, 0.5, 950, 1500, 20_000, 2_500_000, 3e9)]
    ['0', '0.5', '950', '1500', '20k', '2.5M', '3G']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and letter != "k"):
            return f"{value / size:.6g}{letter}"
    return f"{value:.6g}"


def shortened(text: str, limit: int) -> str:
    """Shorten a long string by omitting its middle, because names usually differ at the beginning or the end.

    >>> shortened("a-very-long-name-of-a-run", 11)
    'a-ver…a-run'
    """
    limit = max(3, limit)
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}…{text[len(text) - (limit - limit // 2 - 1) :]}"


def tick_values(low: float, high: float, limit: int) -> list[float]:
    """Return at most `limit` round numbers between two values, evenly spaced.

    >>> tick_values(0.0, 1.0, 5), tick_values(3, 487, 6)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [100.0, 200.0, 300.0, 400.0])
    """
    width = high - low
    if not (isfinite(width) and width > 0) or limit < 1:
        return [low] if limit else []
    power = 10.0 ** floor(log10(width / limit))
    for stride in (power * factor for factor in (1, 2, 2.5, 5, 10, 20, 25, 50)):
        first, last = -floor(-low / stride + 1e-9), floor(high / stride + 1e-9)
        if last - first < limit:
            return [float(f"{number * stride:.12g}") for number in range(first, last + 1)]
    return [low]


def tick_texts(values: list[float]) -> list[str]:
    """Format the tick values of an axis with as few digits as needed.

    >>> tick_texts([0.9998, 0.9999, 1.0]), tick_texts([0.0, 2e-9, 4e-9])
    (['0.9998', '0.9999', '1'], ['0', '2e-9', '4e-9'])
    """
    stride = min((abs(after - before) for before, after in pairwise(values)), default=0.0)
    for digits in range(2, 12):
        texts = [f"{value:.{digits}g}" for value in values]
        if all(abs(float(text) - value) <= stride / 100 for text, value in zip(texts, values, strict=True)):
            break
    # with two digits, 100 would become 1e+02
    texts = [f"{float(text):.{max(digits, 6)}g}" if "e" in text else text for text in texts]
    return [_short_exponent(text) for text in texts]


def _short_exponent(text: str) -> str:
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else text
