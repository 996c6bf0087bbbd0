"""What a framework knows of the worker processes of its loaders, as a watch over hangs asks for it."""

from __future__ import annotations

from types import FrameType
from typing import Any, Protocol


class LoaderStall(Protocol):
    """A loader with workers that is being waited for, or that has failed."""

    def report(self) -> list[str]:
        """Return who is being waited for, with its stack where it can still answer."""

    def cures(self) -> dict[str, str]:
        """Return what its user can do, by verb."""

    def failure(self, batch_idx: int, error: BaseException) -> str:
        """Return which worker ended, and which batches it owed; `batch_idx` is the one that was waited for."""

    def close(self) -> None:
        """End the workers that nobody will ask any more."""

    def kill(self) -> None:
        """End the workers: one that is stopped would keep the process from ending."""


class LoaderWorkers(Protocol):
    """The loaders of a framework."""

    def prepare(self, loader: Any) -> None:
        """Let the workers that a loader is going to start answer when they are asked where they are."""

    def tells_of_end(self, error: BaseException) -> bool:
        """Say whether an error, raised wherever the training was, is about a worker that has ended."""

    def stall(self, frames: list[FrameType]) -> LoaderStall | None:
        """Return what the innermost of these frames, which come first, wait for; None where it is no loader with workers."""
