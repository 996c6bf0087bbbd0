"""NameLimit: limit how many metrics a run can log."""

from __future__ import annotations

from collections.abc import Iterable

from hookpoint.core.errors import BadValue
from hookpoint.core.logger import logger

MAX_NAMES = 10_000


class NameLimit:
    """The metric names that a run records. After `limit` names, further names are not recorded, and the run warns once.

    Each name takes memory in every monitor until the run ends. Thousands of names are usually a mistake, such as a step or
    sample number in the name.

    >>> limit = NameLimit(2)
    >>> [limit.admits(name) for name in ("loss", "accuracy", "loss/17", "loss")]
    [True, True, False, True]
    """

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self.names: set[str] = set()
        self._limit = limit
        self._has_warned = False

    def admits(self, name: str) -> bool:
        """Return whether values under this name are recorded. New names are accepted up to the limit."""
        if name in self.names:
            return True
        check_name(name)
        if len(self.names) < self._limit:
            self.names.add(name)
            return True
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "run.log: '%.100s' is not recorded: the limit is %d metrics. No other new name is recorded either. Existing "
                "metrics are recorded as before. Use one name per quantity, not per step or sample; for many values under "
                "one name, use run.put_histogram",
                name,
                self._limit,
            )
        return False

    def restore(self, names: Iterable[str]) -> None:
        """Add the names stored in a checkpoint, without a limit."""
        self.names.update(names)


def check_name(name: object) -> None:
    if not isinstance(name, str):
        raise BadValue(f"the name of a logged value must be a string, got {name!r}.", write='run.log("name", value)')
