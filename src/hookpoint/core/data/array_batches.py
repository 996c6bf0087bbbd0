"""Check training data, and slice arrays into batches."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from hookpoint.core.errors import BadData

# With "auto", a loader uses its own batch size, and a tuple of arrays or a dataset of samples raises an error.
# None means that the items of a dataset are batches.
BatchSize = int | Literal["auto"] | None
AUTO: Literal["auto"] = "auto"
Reader = Literal["fit", "validate", "predict"]
CALLS = {
    "fit": "fit((X, Y), epochs=..., batch_size=32)",
    "validate": "validate((X, Y), batch_size=32)",
    "predict": "predict((X,), batch_size=32)",
}


def check_data(data: Any, batch_size: BatchSize = AUTO, reader: Reader = "fit") -> None:
    """Raise BadData if the data is invalid, or if the batch size is missing, invalid or not applicable.

    A tuple of arrays or a dataset of samples needs a batch size. An iterable of batches does not take one.
    The error shows how to call the method `reader`.
    """
    if batch_size not in (None, AUTO) and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
        raise BadData(f"batch_size must be an integer >= 1, got {batch_size!r}.")
    if not isinstance(data, tuple):
        kind = type(data).__name__
        if batch_size is None:
            pass
        elif _is_array(data):
            raise BadData(
                f"data is a single {kind}, whose rows would be used as batches.",
                give=f"the arrays as a tuple: {CALLS[reader]}",
                write="batch_size=None if its rows are batches",
            )
        elif batch_size != AUTO and isinstance(data, list) and data and all(map(_is_array, data)):
            raise BadData(
                "the items of a list are used as batches, so batch_size does not apply.",
                write=f"the arrays as a tuple: {CALLS[reader]}",
                drop="batch_size if the items are batches",
            )
        elif isinstance(data, dict | str | bytes):
            what = "a string" if isinstance(data, str | bytes) else f"a {kind}, whose keys would be used as batches"
            raise BadData(f"data is {what}.", give="a DataLoader, a list of batches, or a tuple of tensors and batch_size=32")
        elif batch_size != AUTO and isinstance(data, list):
            raise BadData(
                "the items of a list are used as batches, so batch_size does not apply.",
                write="torch.utils.data.DataLoader(data, batch_size=32) if the items are samples",
                drop="batch_size if the items are batches",
            )
        elif batch_size != AUTO and not takes_batch_size(data):
            raise BadData("batch_size applies to a tuple of tensors or a dataset; a loader has its own.", drop="batch_size")
        elif batch_size == AUTO and _yields_samples(data):
            cures = {"give": "batch_size=32", "write": "batch_size=None if its items are batches"}
            raise BadData(f"{kind} is a dataset of samples and needs a batch size.", **cures)
        if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
            raise BadData(f"{data!r} yields no batches.", give="a DataLoader, an iterable of batches, or a tuple of tensors")
        return
    invalid = [type(array).__name__ for array in data if not hasattr(array, "__array__")]
    if invalid or not data:
        got = ", ".join(invalid) or "nothing"
        raise BadData(
            f"expected a tuple of tensors or arrays, got {got}.", give="batches as a list, an iterable or a DataLoader"
        )
    if batch_size in (None, AUTO):
        raise BadData("a tuple of tensors or arrays needs a batch size.", give="batch_size=32")
    lengths = {len(array) for array in data}
    if len(lengths) != 1:
        raise BadData("the tensors of a dataset must have equal lengths.", got=", ".join(map(str, sorted(lengths))))


def takes_batch_size(data: Any) -> bool:
    """Return whether hookpoint builds the batches itself, from a tuple of arrays or from the samples of a dataset."""
    if isinstance(data, tuple):
        return True
    is_iterable_dataset = _is_torchs("IterableDataset", data)
    is_indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return is_iterable_dataset or (is_indexed and not isinstance(data, list | Mapping | str | bytes) and not _is_array(data))


def as_batches(data: Any, batch_size: BatchSize = AUTO) -> Iterable[Any]:
    """Return an iterable of batches: slices if the data is a tuple of arrays, otherwise the data itself."""
    check_data(data, batch_size)
    if isinstance(data, tuple):
        assert isinstance(batch_size, int)
        return Slices(data, batch_size)
    if isinstance(batch_size, int):
        kind = type(data).__name__
        raise BadData(
            f"cannot build batches from a {kind} without a PyTorch model.", give="a DataLoader, or an iterable of batches"
        )
    batches: Iterable[Any] = data
    return batches


def _yields_samples(data: Any) -> bool:
    """Return whether the items are samples, as in a map-style dataset from torch or Hugging Face."""
    is_hugging_face = any(base.__module__.partition(".")[0] == "datasets" for base in type(data).__mro__)
    is_map_style = _is_torchs("Dataset", data) and not _is_torchs("IterableDataset", data)
    return is_map_style or (is_hugging_face and hasattr(data, "__getitem__"))


def _is_torchs(name: str, data: Any) -> bool:
    module = sys.modules.get("torch.utils.data")
    return module is not None and isinstance(data, getattr(module, name))


def _is_array(data: Any) -> bool:
    return hasattr(data, "shape") and hasattr(data, "__array__")


class Slices:
    """Slice arrays of equal length into batches, in order. The last batch may be shorter."""

    def __init__(self, arrays: tuple[Any, ...], batch_size: int) -> None:
        self._arrays, self._batch_size = arrays, batch_size

    def __len__(self) -> int:
        return -(-len(self._arrays[0]) // self._batch_size)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(self._arrays[0]), self._batch_size):
            yield tuple(array[start : start + self._batch_size] for array in self._arrays)
