"""GuardedCall: the points around one call."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hookpoint.core.hooks.hooks import Hooks

logger = logging.getLogger("hookpoint")


class GuardedCall:
    """Fire a point's begin, then its end or its error, each with what is known by then."""

    __slots__ = ("_hooks", "_payload", "_point")

    def __init__(self, hooks: Hooks, point: str, payload: Mapping[str, Any]) -> None:
        self._hooks = hooks
        self._point = point
        self._payload = dict(payload)

    def begin(self) -> None:
        self._hooks.fire_payload(f"{self._point}_begin", self._payload)

    def end(self, result: Any) -> Any:
        """Fire the end; return the result, or what a handler put in its place."""
        return self._hooks.fire_payload(f"{self._point}_end", {**self._payload, "result": result})

    def fail(self, error: BaseException) -> None:
        """Fire the error. A handler that fails itself is logged: the first error is the one that counts."""
        try:
            self._hooks.fire_payload(f"{self._point}_error", {**self._payload, "error": error})
        except Exception as second:
            logger.error("a handler of %s_error failed", self._point, exc_info=second)
