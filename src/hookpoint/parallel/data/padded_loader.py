"""PaddedLoader: the data of a process that has fewer batches than others."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from itertools import repeat
from typing import Any


class PaddedLoader:
    """Give the batches of a process, then its last one again, until the process with the most batches is done.

    The others wait for this one in each step. What comes again is computed, so that they need not, and counts for nothing.
    """

    def __init__(self, data: Any, longest: int) -> None:
        self.data = data
        self._longest = longest

    def __len__(self) -> int:
        return self._longest

    def __iter__(self) -> Iterator[Any]:
        return self.after(iter(self.data), 0)

    def begin_at(self, done: int) -> int:
        """Return which batch of the data to go on with, where so many were seen: the last one, if it is to come again."""
        return min(done, self._own() - 1)

    def after(self, source: Iterator[Any], done: int) -> Iterator[Any]:
        """Give what follows so many batches; the source begins at `begin_at` of them."""
        batch = None
        for batch in source:
            if done < self._own():
                done += 1
                yield batch
        yield from repeat(batch, self._longest - done)

    def _own(self) -> int:
        data: Sized = self.data
        return len(data)
