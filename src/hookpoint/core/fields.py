"""What is inside of a batch, of a model's outputs or of a module's: by name, or one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

TARGET_NAMES = ("target", "targets", "label", "labels", "y")


def named_fields(value: Any) -> Mapping[str, Any]:
    """Return the parts of a value by name; none where they have no names.

    A mapping has names, and so have a dataclass, a named tuple, the ModelOutput of Hugging Face and a batch of graphs.

    >>> from collections import namedtuple
    >>> named_fields(namedtuple("Point", "x y")(1, 2))
    {'x': 1, 'y': 2}
    >>> named_fields([1, 2])
    {}
    """
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple | list):
        by_name: Mapping[str, Any] = value._asdict() if hasattr(value, "_asdict") else {}
        return by_name
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(value.to_dict()) if is_graph(value) else {}


def field_values(value: Any) -> Iterable[Any]:
    """Return the parts of a value one after the other; none where it has none."""
    return value if isinstance(value, tuple | list) else named_fields(value).values()


def is_dataclass(value: Any) -> bool:
    """Say whether a value is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_graph(value: Any) -> bool:
    """Say whether a value is a batch as PyTorch Geometric has them: attributes by name, which it moves and lists itself."""
    if isinstance(value, type | Mapping) or hasattr(value, "shape"):
        return False
    return all(callable(getattr(value, name, None)) for name in ("to", "keys", "to_dict"))


def target_field(parts: Mapping[str, Any]) -> Any:
    """Return the part that is named as targets are; None where there is none, or more than one."""
    found = [name for name in TARGET_NAMES if name in parts]
    return parts[found[0]] if len(found) == 1 else None
