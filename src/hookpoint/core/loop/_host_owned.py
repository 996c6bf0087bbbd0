"""Replacements for what a host manages instead of the loop: data and random state. For checkpoints, see HostStore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hookpoint.core.checkpoint.positions import Entered, Positions
from hookpoint.core.checkpoint.randomness import PlainRandomness


class HostLoader:
    """A stand-in for the loader of a pass whose batches come from a host. `total` is the number of batches, if known."""

    def __init__(self, total: int | None = None) -> None:
        self._total = total

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        if self._total is None:
            raise TypeError("the host did not give the number of batches")
        return self._total


class HostRandomState(PlainRandomness):
    """Random state that the host itself saves and restores."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class HostPositions(Positions):
    """The position in the data, which the host itself restores."""

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        return iter(loader)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def resume(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        return Entered(iter(loader), batches)

    resume_in_team = resume
