"""The interface to the worker processes of a framework's loaders, for hang reports."""

from __future__ import annotations

from types import FrameType
from typing import Any, Protocol


class LoaderStall(Protocol):
    """A loader with workers that is waited for, or that has failed."""

    def report(self) -> list[str]:
        """Return lines about the worker that is waited for, with its stack if it still responds."""

    def cures(self) -> dict[str, str]:
        """Return what the user can do, by verb."""

    def failure(self, batch_idx: int, error: BaseException) -> str:
        """Return which worker ended, and the batches it was working on; `batch_idx` is the one that was waited for."""

    def close(self) -> None:
        """End the workers."""

    def kill(self) -> None:
        """Kill the workers: a stopped one would keep the process from ending."""


class LoaderWorkers(Protocol):
    """The loaders of a framework."""

    def prepare(self, loader: Any) -> None:
        """Enable the workers that a loader is about to start to report where they are."""

    def is_worker_exit(self, error: BaseException) -> bool:
        """Return whether an error, raised anywhere in training, reports a worker that has ended."""

    def stall(self, frames: list[FrameType]) -> LoaderStall | None:
        """Return the loader that these frames, the innermost first, wait for; None if it has no workers."""
