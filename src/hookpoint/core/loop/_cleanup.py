"""Cleanup: functions to call when a pass, an epoch or the run is left, in whatever way."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger("hookpoint")


class Cleanup:
    """Functions that wait for the end of a scope, each called once, the last one first.

    A scope is a pass, or None for the end of an epoch or of the run. A pass left by a `break` or an exception fires its end
    points late, after another step perhaps, or never. What must be undone before that is registered here.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[object, Callable[[], object]]] = []

    def add(self, scope: object, function: Callable[[], object]) -> None:
        self._waiting.append((scope, function))

    def leave(self, scope: object, *, has_failed: bool = False) -> None:
        """Call the functions of this scope. The first error is raised, or logged if an exception is propagating."""
        first: BaseException | None = None
        for item in [item for item in reversed(self._waiting) if item[0] is scope]:
            self._waiting.remove(item)
            try:
                item[1]()
            except BaseException as error:  # the remaining functions must run
                if first is None and not (has_failed and isinstance(error, Exception)):
                    first = error
                else:
                    logger.error("%s: %s", type(error).__name__, error)
        if first is not None:
            raise first
