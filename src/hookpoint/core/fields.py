"""The fields of a batch or of a model's outputs, by name or in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

TARGET_NAMES = ("target", "targets", "label", "labels", "y")


def named_fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of a value by name. Return an empty mapping if they have no names.

    Works for mappings, dataclasses, named tuples, Hugging Face's ModelOutput and PyTorch Geometric's batches.

    >>> from collections import namedtuple
    >>> named_fields(namedtuple("Point", "x y")(1, 2))
    {'x': 1, 'y': 2}
    >>> named_fields([1, 2])
    {}
    """
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple | list):
        return dict(value._asdict()) if hasattr(value, "_asdict") else {}
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(value.to_dict()) if is_graph(value) else {}


def field_values(value: Any) -> Iterable[Any]:
    """Return the fields of a value in order. Return an empty iterable if it has none."""
    return value if isinstance(value, tuple | list) else named_fields(value).values()


def targets_in(batch: Any) -> Any:
    """Return the targets of a batch: the last item, or the field with a typical target name. Return None if there are none."""
    if isinstance(batch, tuple | list):
        return batch[-1] if len(batch) > 1 else None
    return target_field(named_fields(batch))


def is_dataclass(value: Any) -> bool:
    """Return whether a value is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_graph(value: Any) -> bool:
    """Return whether a value is a PyTorch Geometric batch: it has the methods `to`, `keys` and `to_dict`."""
    if isinstance(value, type | Mapping) or hasattr(value, "shape"):
        return False
    return all(callable(getattr(value, name, None)) for name in ("to", "keys", "to_dict"))


def target_field(fields: Mapping[str, Any]) -> Any:
    """Return the field with a typical target name. Return None unless there is exactly one."""
    names = [name for name in TARGET_NAMES if name in fields]
    return fields[names[0]] if len(names) == 1 else None
