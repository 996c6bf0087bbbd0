"""Data: what may be given where batches are wanted, and batches that are cut out of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hookpoint.core.errors import BadLoop, text


def check_data(data: Any, batch_size: int | None) -> None:
    """Refuse what gives no batches: anything but an iterable of them, or a tuple of equally long arrays with a batch size."""
    if not isinstance(data, tuple):
        if batch_size is not None:
            raise BadLoop(text("batch_size is for a tuple of tensors or arrays; a loader has its own.", drop="batch_size"))
        if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
            raise BadLoop(
                text(f"{data!r} gives no batches.", give="a DataLoader, an iterable of batches, or a tuple of tensors")
            )
        return
    strange = [type(part).__name__ for part in data if not hasattr(part, "__array__")]
    if strange or not data:
        raise BadLoop(
            text(
                f"a tuple of data holds tensors or arrays, not {', '.join(strange) or 'nothing'}.",
                give="batches as a list, an iterable or a DataLoader",
            )
        )
    if batch_size is None:
        raise BadLoop(text("a tuple of tensors or arrays needs a batch size.", give="batch_size=32"))
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise BadLoop(text(f"batch_size={batch_size!r}.", give="an integer, 1 or more"))
    lengths = {len(part) for part in data}
    if len(lengths) != 1:
        raise BadLoop(text("the tensors of a data set must be equally long.", got=", ".join(map(str, sorted(lengths)))))


def as_batches(data: Any, batch_size: int | None) -> Iterable[Any]:
    """Return something to iterate over: the data itself if it gives batches, slices of it if it is a tuple of arrays."""
    check_data(data, batch_size)
    if isinstance(data, tuple):
        assert batch_size is not None
        return Slices(data, batch_size)
    batches: Iterable[Any] = data
    return batches


class Slices:
    """The batches of arrays that belong together, in order; the last one may be shorter."""

    def __init__(self, arrays: tuple[Any, ...], batch_size: int) -> None:
        self._arrays = arrays
        self._batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self._arrays[0]) // self._batch_size)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(self._arrays[0]), self._batch_size):
            yield tuple(array[start : start + self._batch_size] for array in self._arrays)
