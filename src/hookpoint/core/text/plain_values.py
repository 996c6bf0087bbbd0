"""Plain values: values that consist of JSON types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Convert a value to JSON types. Non-finite numbers and other objects become strings.

    >>> plain({"loss": float("nan"), "shape": (2, 3), "kind": complex})
    {'loss': 'nan', 'shape': [2, 3], 'kind': "<class 'complex'>"}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) or (hasattr(value, "__float__") and getattr(value, "shape", None) == ()):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    return str(value)
