"""PaddedLoader: repeat the last batch on a rank that has fewer batches than other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any


class PaddedLoader:
    """Yield a rank's batches, then repeat the last batch until the rank with the most batches is done.

    The rank still computes the gradients of the repeated batch, because the other ranks wait for them in each step. These
    gradients have zero weight, so they do not change the result.
    """

    def __init__(self, data: Any, longest: int) -> None:
        self.data = data
        self._longest = longest

    def __len__(self) -> int:
        return self._longest

    def __iter__(self) -> Iterator[Any]:
        return self.resume(iter(self.data), 0)

    def resume_at(self, done: int) -> int:
        """Return the index of the batch to resume at after `done` batches. A repeated batch has the index of the last batch."""
        return min(done, len(self.data) - 1)

    def resume(self, source: Iterator[Any], done: int) -> Iterator[Any]:
        """Yield all batches except the first `done`. `source` must begin at the batch `resume_at(done)`."""
        batch = None
        for batch in source:
            if done < len(self.data):
                done += 1
                yield batch
        yield from repeat(batch, self._longest - done)
