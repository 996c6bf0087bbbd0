"""NameLimit: how many metrics a run may have."""

from __future__ import annotations

import logging
from collections.abc import Iterable

logger = logging.getLogger("hookpoint")

MOST_NAMES = 10_000


class NameLimit:
    """The names that a run has logged, at most `most`. A new name beyond that is not recorded, and one warning says so.

    Each name costs memory for as long as the run lasts, in every monitor. So many of them are most often a mistake: a name that
    has a step or a sample in it.

    >>> limit = NameLimit(2)
    >>> [limit.admits(name) for name in ("loss", "accuracy", "loss/17", "loss")]
    [True, True, False, True]
    """

    def __init__(self, most: int = MOST_NAMES) -> None:
        self.names: set[str] = set()
        self._most = most
        self._is_told = False

    def admits(self, name: str) -> bool:
        """Say whether values of this name are recorded; a new name is, while there is room."""
        if name in self.names:
            return True
        if len(self.names) < self._most:
            self.names.add(name)
            return True
        if not self._is_told:
            self._is_told = True
            logger.warning(
                "run.log: '%.100s' is not recorded, nor is any other new name: a run has at most %d metrics. Those it has are "
                "recorded as before. Use a name for each quantity, not for each step or sample; for many values under one "
                "name, use run.put_histogram",
                name,
                self._most,
            )
        return False

    def take_back(self, names: Iterable[str]) -> None:
        """Take in the names of a checkpoint, however many there are."""
        self.names.update(names)
