"""Count the samples in a batch and the batches in a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any

from hookpoint.core.errors import BadArgument, BadValue

ATTRIBUTES = ("num_graphs", "batch_size")  # checked in this order
SCALARS = (str, int, float, type(None))
PLAIN = (dict, list, tuple)


def count_samples(batch: Any) -> int:
    """Return the number of samples in a batch.

    For an array (anything with a `shape`), this is the size of its first dimension. For a pair whose first item (the inputs) is
    an array, this is the size of the first dimension of the inputs. Any other tuple, list, mapping or dataclass is searched at
    any depth. The count comes from the first rule that applies:

    1. The attribute `num_graphs` or `batch_size`, if it is an integer >= 0. The batch is checked first, then the objects in it.
    2. The most frequent size of the first dimension of the arrays in the batch; in a tie, the first of these sizes. A list of
       tuples is a list of samples, so its items are not searched.
    3. If there are no arrays, the number of samples in a list of samples, or the number of items in the first column.

    Anything else counts as one sample.

    >>> count_samples([["a", "b", "c"], [0, 1, 0]])
    3
    """
    kind = type(batch)
    if kind is tuple or kind is list:  # the common case first
        if 0 < len(batch) <= 2:
            try:
                return int(batch[0].shape[0])
            except (AttributeError, IndexError, TypeError):  # not an array, or an array without dimensions
                pass
        return _most_shared(batch, batch)
    if kind is dict:
        return _most_shared(batch, batch.values())
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    return 1 if isinstance(batch, SCALARS) else _searched(batch)


def counter(function: Callable[[Any], Any] | None) -> Callable[[Any], int]:
    """Return the function that counts samples: `count_samples`, or the user's function, wrapped to check its results."""
    if function is None:
        return count_samples
    if not callable(function):
        raise BadArgument(
            f"samples must be a function that takes the batch, got {function!r}.", write="samples=lambda batch: ..."
        )

    def count(batch: Any) -> int:
        number = function(batch)
        if not _is_count(number):
            cures = {"expected": "an integer >= 0", "return": "int(...) of the count"}
            raise BadValue(f"samples= returned {number!r} for a batch of type {type(batch).__name__}.", **cures)
        return int(number)

    return count


def _most_shared(batch: Any, columns: Iterable[Any]) -> int:
    """Count the samples in a plain container.

    If all columns are arrays, use the sizes of their first dimensions. Otherwise, search the batch for attributes and arrays at
    any depth.
    """
    lengths = []
    for column in columns:
        shape = getattr(column, "shape", None)
        if shape is None:
            return _searched(batch)
        if len(shape):
            lengths.append(int(shape[0]))
    return _most_frequent(lengths) if lengths else _items(batch)


def _searched(batch: Any) -> int:
    lengths: list[int] = []
    stated = _measure(batch, lengths)
    if stated is not None:
        return stated
    return _most_frequent(lengths) if lengths else _items(batch)


def _most_frequent(lengths: list[int]) -> int:
    """Return the most frequent number. If several numbers are equally frequent, return the one that occurs first."""
    first = lengths[0]
    return first if lengths.count(first) == len(lengths) else max(dict.fromkeys(lengths), key=lengths.count)


def _measure(part: Any, lengths: list[int]) -> int | None:
    """Search part of a batch for an attribute such as `batch_size`, and return its value, or None if not found.

    During the search, append the size of each array's first dimension to `lengths`.
    """
    shape = getattr(part, "shape", None)
    if shape is not None:
        if len(shape):
            lengths.append(int(shape[0]))
        return None
    stated = None if type(part) in PLAIN else _stated(part)
    if stated is None:
        for inner in _opened(part):
            if not isinstance(inner, SCALARS):  # a column may be a list with one scalar per sample
                stated = _measure(inner, lengths)
                if stated is not None:
                    break
    return stated


def _stated(part: Any) -> int | None:
    for name in ATTRIBUTES:
        try:
            stated: Any = getattr(part, name, None)
        except Exception:  # a property that raises an error counts as missing
            continue
        if _is_count(stated):
            return int(stated)
    return None


def _is_count(number: Any) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool) and int(number) >= 0


def _opened(part: Any) -> Iterable[Any]:
    """Return the columns of a batch or of part of a batch. Return an empty iterable if it has no columns."""
    if isinstance(part, Mapping):
        return part.values()
    if isinstance(part, list | tuple):
        are_samples = isinstance(part, list) and all(isinstance(item, tuple) for item in part)
        return () if are_samples else part
    fields = getattr(part, "__dataclass_fields__", None)
    if fields and not isinstance(part, type):
        return [getattr(part, name) for name in fields]
    return ()


def _items(batch: Any) -> int:
    """Return the number of items in a batch that has no array with a first dimension."""
    if isinstance(batch, list) and batch and isinstance(batch[0], tuple):
        return len(batch)
    columns = list(_opened(batch))
    if not columns or any(hasattr(column, "shape") for column in columns):
        return 1
    if isinstance(batch, list | tuple) and not isinstance(columns[0], list | tuple | Mapping):
        return len(columns)
    return _items(columns[0])


def length_of(loader: Any) -> int | None:
    """Return the number of batches in a loader, or None if unknown."""
    try:
        return len(loader)
    except (AttributeError, NotImplementedError, TypeError):  # some loaders have a __len__ that raises an error
        return None
