"""The interface to the worker processes of a framework's loaders, for hang reports."""

from __future__ import annotations

from types import FrameType
from typing import Any, Protocol


class LoaderStall(Protocol):
    """A loader with workers that is waited for, or that has failed."""

    def report(self) -> list[str]:
        """Return which worker is waited for, with its stack if it can still answer."""

    def cures(self) -> dict[str, str]:
        """Return what the user can do, by verb."""

    def failure(self, batch_idx: int, error: BaseException) -> str:
        """Return which worker ended, and which batches it owed; `batch_idx` is the one that was waited for."""

    def close(self) -> None:
        """End the workers."""

    def kill(self) -> None:
        """Kill the workers: a stopped one would keep the process from ending."""


class LoaderWorkers(Protocol):
    """The loaders of a framework."""

    def prepare(self, loader: Any) -> None:
        """Make the workers that a loader is about to start able to report where they are."""

    def is_worker_exit(self, error: BaseException) -> bool:
        """Return whether an error, raised anywhere in the training, is about a worker that has ended."""

    def stall(self, frames: list[FrameType]) -> LoaderStall | None:
        """Return what the innermost of these frames, which come first, wait for; None if not a loader with workers."""
