"""How many samples a batch holds, whatever it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def count_samples(batch: Any) -> int:
    """Return the length of the first dimension of the first array in a batch, or 1 where there is none to be seen.

    Tuples, lists and mappings are opened; a list of anything but arrays counts by its length.

    >>> count_samples([["a", "b", "c"], [0, 1, 0]])
    3
    """
    while True:
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else 1
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, tuple) and batch:
            batch = batch[0]
        elif isinstance(batch, list) and batch:
            if not hasattr(batch[0], "shape") and not isinstance(batch[0], list | tuple | Mapping):
                return len(batch)
            batch = batch[0]
        else:
            return 1
