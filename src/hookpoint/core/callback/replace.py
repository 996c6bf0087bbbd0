"""Replace: change the result of a guarded call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Replace:
    """Return `Replace(value)` from an `on_x_end` handler to change the result for the caller and for later handlers.

    >>> Replace(None).value is None
    True
    """

    value: Any
