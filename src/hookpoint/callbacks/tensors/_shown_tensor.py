"""ShownTensor: a tensor of any size as one line of text."""

from __future__ import annotations

import math
from typing import Any

from hookpoint.callbacks._shared.async_array import snapshot


class ShownTensor:
    """Copy the first elements of a tensor, an array or a number now; `str` reads them later.

    >>> str(ShownTensor("loss", 0.123456789, 10))
    'loss 0.123457'
    """

    def __init__(self, name: str, value: Any, limit: int) -> None:
        self._name = name
        self._shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
        if hasattr(value, "to_local"):
            value = value.to_local()
        if getattr(value, "is_sparse", False):
            value = value._values()
        self._is_cut = math.prod(getattr(value, "shape", ())) > limit
        self._values: Any = snapshot(first_elements(value, limit)) if hasattr(value, "shape") else value

    @property
    def is_there(self) -> bool:
        """Whether reading it returns immediately."""
        return getattr(self._values, "is_there", True)

    def __str__(self) -> str:
        values = self._values.__array__().reshape(-1).tolist() if hasattr(self._values, "__array__") else [self._values]
        numbers = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in values]
        if not self._shape:
            return f"{self._name} {numbers[0]}"
        return f"{self._name} {' x '.join(map(str, self._shape))} [{' '.join(numbers + ['...'] * self._is_cut)}]"


def first_elements(array: Any, limit: int) -> Any:
    """Return the first elements of a tensor or array in order, without copying the rest."""
    while array.ndim > 1 and array.shape[0] and math.prod(array.shape[1:]) >= limit:
        array = array[0]
    if array.ndim and array.shape[0]:
        array = array[: -(-limit // max(math.prod(array.shape[1:]), 1))]
    return array.reshape(-1)[:limit] if array.ndim else array
