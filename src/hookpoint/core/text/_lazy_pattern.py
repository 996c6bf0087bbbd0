"""Regular expressions that are compiled on first use. Some take a millisecond to compile, and each process needs only a few."""

from __future__ import annotations

import re
from typing import Any, cast


class LazyPattern:
    """A stand-in for a compiled pattern. It compiles the pattern when one of the pattern's attributes is first used."""

    def __init__(self, pattern: str, flags: int) -> None:
        self._pattern, self._flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self._pattern, self._flags), name)
        setattr(self, name, value)  # later lookups do not call __getattr__
        return value


def lazy_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern like `re.compile`, but compile it on first use. An invalid pattern raises an error only then.

    >>> lazy_pattern("[0-9]+").findall("1 and 23")
    ['1', '23']
    """
    return cast("re.Pattern[str]", LazyPattern(pattern, flags))
