"""Staleness: decide which worker may continue, so that no gradient is too stale when it is applied."""

from __future__ import annotations

from typing import NamedTuple


class Applied(NamedTuple):
    """An applied gradient: its worker, the parameter version it was computed on, and the version it was applied to."""

    worker: int
    computed_on: int
    applied_at: int

    @property
    def staleness(self) -> int:
        """Number of gradients from other workers that were applied between this worker's pull and its push."""
        return self.applied_at - self.computed_on


class Staleness:
    """Count parameter versions, and decide which pull or push may happen next so that staleness stays within a bound.

    A worker pulls parameters and later pushes a gradient that it computed on them. Each push creates a new version. A push is
    allowed if every other computing worker can still push within the bound afterwards. This check assumes that the worker with
    the oldest parameters pushes first. A pull is allowed while at most `bound` workers are computing. With a bound of 0, one
    worker computes at a time.

    >>> rule = Staleness(1)
    >>> rule.pull("a"), rule.pull("b"), rule.may_pull()
    (0, 0, False)
    >>> rule.push("a"), rule.may_pull(), rule.pull("a"), rule.may_push("a")
    ((0, 0), True, 1, False)
    """

    def __init__(self, bound: int, version: int = 0) -> None:
        self.bound, self.version = bound, version
        self.computing: dict[int | str, int] = {}  # maps each computing worker to its parameter version

    def may_pull(self) -> bool:
        return len(self.computing) <= self.bound

    def pull(self, worker: int | str) -> int:
        """Record a pull, and return the version of the parameters."""
        assert self.may_pull()
        assert worker not in self.computing
        self.computing[worker] = self.version
        return self.version

    def may_push(self, worker: int | str) -> bool:
        others = sorted(version for other, version in self.computing.items() if other != worker)
        return all(self.version + 1 + place <= version + self.bound for place, version in enumerate(others))

    def push(self, worker: int | str) -> tuple[int, int]:
        """Record a push. Return the version that the gradient was computed on and the version that it is applied to."""
        assert self.may_push(worker)
        computed_on, applied_at = self.computing.pop(worker), self.version
        assert applied_at - computed_on <= self.bound
        self.version += 1
        return computed_on, applied_at

    def leave(self, worker: int | str) -> None:
        """Remove a worker that has finished or failed."""
        self.computing.pop(worker, None)
