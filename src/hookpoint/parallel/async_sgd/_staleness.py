"""Staleness: who may go first, so that no gradient is applied to parameters that are too far from those it was made for."""

from __future__ import annotations

from typing import NamedTuple


class Applied(NamedTuple):
    """A gradient that was applied: whose, on which version of the parameters it was computed, and to which it was applied."""

    worker: int
    computed_on: int
    applied_at: int

    @property
    def staleness(self) -> int:
        """How many gradients of others were applied in between."""
        return self.applied_at - self.computed_on


class Staleness:
    """Count versions, and say what may happen next: whoever has parameters can always have his gradient applied in time.

    A worker `pull`s parameters, and later `push`es the gradient that it has computed on them, which makes the next version.
    Both wait until they may. A push may be made if after it all others who have parameters can still make theirs, the one with
    the oldest first; parameters are handed out to no more workers than can follow each other. With a bound of 0 one worker at a
    time computes.

    >>> rule = Staleness(1)
    >>> rule.pull("a"), rule.pull("b"), rule.may_pull()
    (0, 0, False)
    >>> rule.push("a"), rule.may_pull(), rule.pull("a"), rule.may_push("a")
    ((0, 0), True, 1, False)
    """

    def __init__(self, bound: int, version: int = 0) -> None:
        self.bound, self.version = bound, version
        self.computing: dict[int | str, int] = {}  # who has parameters of which version

    def may_pull(self) -> bool:
        return len(self.computing) <= self.bound

    def pull(self, worker: int | str) -> int:
        """Hand out the parameters; return their version."""
        assert self.may_pull()
        assert worker not in self.computing
        self.computing[worker] = self.version
        return self.version

    def may_push(self, worker: int | str) -> bool:
        others = sorted(version for other, version in self.computing.items() if other != worker)
        return all(self.version + 1 + place <= version + self.bound for place, version in enumerate(others))

    def push(self, worker: int | str) -> tuple[int, int]:
        """Apply a gradient; return the version that it was computed on, and the one that it is applied to."""
        assert self.may_push(worker)
        computed_on, applied_at = self.computing.pop(worker), self.version
        assert applied_at - computed_on <= self.bound
        self.version += 1
        return computed_on, applied_at

    def leave(self, worker: int | str) -> None:
        """Wait no longer for a worker: it is done, or has failed."""
        self.computing.pop(worker, None)
