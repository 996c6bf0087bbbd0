"""Embedding: rows of numbers with labels, for TensorBoard's projector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookpoint.core.errors import BadValue

Metadata = Sequence[Any] | Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Embedding:
    """A matrix with one embedding per row, and optionally labels and images for the rows.

    `metadata` is a sequence with one label per row, or a mapping from column names to such sequences. `images` has shape rows x
    height x width x channels.
    """

    matrix: Any
    metadata: Metadata | None = None
    images: Any = None

    @classmethod
    def of(cls, name: str, matrix: Any, metadata: Metadata | None, images: Any) -> Embedding:
        """Check the arguments and copy the arrays, so that later changes have no effect.

        Copying a GPU tensor does not wait for the GPU.
        """
        shape = _shape(matrix)
        if len(shape) != 2 or 0 in shape:
            raise BadValue(f"embedding '{name}' has shape {shape}; expected rows x dimensions.")
        check_labels(f"embedding '{name}'", metadata, shape[0])
        if images is not None and (len(_shape(images)) not in (3, 4) or _shape(images)[0] != shape[0]):
            expected = f"{shape[0]} images of height x width x channels"
            raise BadValue(f"embedding '{name}': images have shape {_shape(images)}; expected {expected}.")
        return cls(_copied(matrix), metadata, None if images is None else _copied(images))


def check_labels(owner: str, metadata: Any, rows: int) -> None:
    """Raise BadValue unless there is one label per row, or `metadata` is None."""
    write = "a list with one label per row, or a dict of such lists by column name"
    columns = metadata if isinstance(metadata, Mapping) else {"metadata": () if metadata is None else metadata}
    for column, labels in columns.items():
        if isinstance(labels, str | bytes) or not hasattr(labels, "__len__"):
            raise BadValue(f"{owner}: {column} must be a list of labels, got {labels!r}.", write=write)
        if len(labels) != rows and metadata is not None:
            raise BadValue(f"{owner} has {rows} rows, but {column} has {len(labels)} labels.", write=write)
    if not columns:
        raise BadValue(f"{owner}: metadata has no columns.", write=write)


def _shape(array: Any) -> tuple[int, ...]:
    if hasattr(array, "shape"):
        return tuple(array.shape)
    if not isinstance(array, list | tuple):
        return ()
    inner = {_shape(item) for item in array}
    return (len(array), *(inner.pop() if len(inner) == 1 else ()))


def _copied(array: Any) -> Any:
    if hasattr(array, "detach"):
        return array.detach().clone()
    return array.copy() if hasattr(array, "copy") else array
