"""ShownTensor: a tensor as one line of text, however big it is."""

from __future__ import annotations

from typing import Any

from hookpoint.callbacks._shared.async_array import AsyncArray


class ShownTensor:
    """The first elements of a tensor, an array or a number as they are now; `str` of it is read later.

    >>> str(ShownTensor("loss", 0.123456789, 10))
    'loss 0.123457'
    """

    def __init__(self, name: str, value: Any, most: int) -> None:
        self._name = name
        self._shape: tuple[int, ...] = tuple(value.shape) if _is_array(value) else ()
        self._is_shortened = False
        if hasattr(value, "detach"):
            if hasattr(value, "to_local"):
                value = value.to_local()
            if getattr(value, "is_sparse", False):
                value = value._values()
            self._is_shortened = value.numel() > most
            self._values: Any = AsyncArray(first_elements(value, most))
        elif _is_array(value):
            self._is_shortened = value.size > most
            self._values = first_elements(value, most).copy()
        else:
            self._values = value

    @property
    def is_there(self) -> bool:
        """Whether reading it waits for nothing."""
        return self._values.is_there if isinstance(self._values, AsyncArray) else True

    def __str__(self) -> str:
        values = self._values
        if isinstance(values, AsyncArray):
            values = values.__array__()
        if not _is_array(values):
            return f"{self._name} {_number(values)}"
        numbers = [_number(one) for one in values.reshape(-1).tolist()]
        if not self._shape:
            return f"{self._name} {numbers[0]}"
        more = ["..."] if self._is_shortened else []
        return f"{self._name} {' x '.join(map(str, self._shape))} [{' '.join([*numbers, *more])}]"


def first_elements(array: Any, most: int) -> Any:
    """Return the first elements of a tensor or array in their order, as a view where it has many."""
    while array.ndim > 1 and array.shape[0] and _size(array[0]) >= most:
        array = array[0]
    if array.ndim and array.shape[0]:
        each = _size(array[0]) if array.ndim > 1 else 1
        array = array[: -(-most // max(each, 1))]
    return array.reshape(-1)[:most] if array.ndim else array


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape")


def _size(array: Any) -> int:
    size: int = array.numel() if hasattr(array, "numel") else array.size
    return size


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
