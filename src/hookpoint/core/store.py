"""Store: what keeps checkpoints. The core knows this protocol only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Store(Protocol):
    """Keep a run's state. A loop calls it at step boundaries only, once for all tags that were asked for."""

    def save(self, state: Mapping[str, Any], *, step: int, tags: Sequence[str]) -> Any:
        """Keep the state and return where it is; it is on disk for good when this returns."""
