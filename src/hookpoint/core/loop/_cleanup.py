"""Cleanup: what is to be undone when a pass, an epoch or the run is left, however that comes about."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger("hookpoint")


class Cleanup:
    """Functions that wait for a scope to be left, each called once, the last one first.

    A scope is a pass, or None for the end of an epoch or of the run. A pass that a `break` or an exception has left behind has
    no end points, or has them later, when a step may have been made: what has to be undone before that waits here.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[object, Callable[[], object]]] = []

    def add(self, scope: object, function: Callable[[], object]) -> None:
        self._waiting.append((scope, function))

    def leave(self, scope: object, *, has_failed: bool = False) -> None:
        """Call all that waits for this scope. The first error is raised, or, where an exception is on its way, logged."""
        first: BaseException | None = None
        for one in [one for one in reversed(self._waiting) if one[0] is scope]:
            self._waiting.remove(one)
            try:
                one[1]()
            except BaseException as error:  # the others have something to undo, too
                if first is None and not (has_failed and isinstance(error, Exception)):
                    first = error
                else:
                    logger.error("%s: %s", type(error).__name__, error)
        if first is not None:
            raise first
