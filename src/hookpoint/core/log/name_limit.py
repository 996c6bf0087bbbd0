"""NameLimit: limit the number of metrics of a run."""

from __future__ import annotations

from collections.abc import Iterable

from hookpoint.core.logger import logger

MAX_NAMES = 10_000


class NameLimit:
    """The names that a run has logged, at most `limit`. New names beyond that are not recorded; one warning is logged.

    Each name costs memory in every monitor for as long as the run lasts. Thousands of names are usually a mistake: a name that
    contains a step or a sample.

    >>> limit = NameLimit(2)
    >>> [limit.admits(name) for name in ("loss", "accuracy", "loss/17", "loss")]
    [True, True, False, True]
    """

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self.names: set[str] = set()
        self._limit = limit
        self._has_warned = False

    def admits(self, name: str) -> bool:
        """Return whether values of this name are recorded; a new name is, while there is room."""
        if name in self.names:
            return True
        if len(self.names) < self._limit:
            self.names.add(name)
            return True
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "run.log: '%.100s' is not recorded, nor is any other new name: a run has at most %d metrics. Existing metrics "
                "are recorded as before. Use one name per quantity, not per step or sample; for many values under one name, "
                "use run.put_histogram",
                name,
                self._limit,
            )
        return False

    def restore(self, names: Iterable[str]) -> None:
        """Add the names of a checkpoint, without a limit."""
        self.names.update(names)
