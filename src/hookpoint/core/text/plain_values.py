"""Plain values: JSON types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return a value in JSON types. Non-finite numbers become strings, and other objects become their text.

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
