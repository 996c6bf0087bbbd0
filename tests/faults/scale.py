"""Scale: the whole matrix, as run by `make faults`, or the sample in every `make test`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

FULL = os.environ.get("HOOKPOINT_FAULTS") == "all"


def chosen(cases: Sequence[T], sample: int) -> list[T]:
    """Return all cases, or `sample` of them, spread evenly from the first to the last."""
    if FULL or sample >= len(cases):
        return list(cases)
    return [cases[number * (len(cases) - 1) // max(sample - 1, 1)] for number in range(sample)]


def times(full: int, sample: int) -> int:
    """Return the number of repetitions."""
    return full if FULL else sample
