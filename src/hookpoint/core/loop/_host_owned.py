"""What a host owns instead of the loop that it drives: data, random numbers, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from hookpoint.core.checkpoint.positions import Entered, Positions
from hookpoint.core.checkpoint.randomness import PlainRandomness
from hookpoint.core.checkpoint.store import Checkpoint, Request, Resume, Saved


class HostLoader:
    """The loader of a pass whose batches a host provides; it may know their number."""

    def __init__(self, total: int | None = None) -> None:
        self._total = total

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        if self._total is None:
            raise TypeError("the host did not give the number of batches")
        return self._total


class HostRandomState(PlainRandomness):
    """Random state that the host saves and restores."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class HostPositions(Positions):
    """The position in the data, which the host restores itself."""

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        return iter(loader)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def resume(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        return Entered(iter(loader), batches)

    resume_in_team = resume


class HostStore:
    """Checkpoints that the host writes; a run resumes from the state that the host has saved for it."""

    def __init__(self, write: Callable[[Sequence[str], int], Any] | None = None) -> None:
        self.saved: Mapping[str, Any] | None = None
        self._write = write

    def join(self, team: Any) -> None: ...

    def open(self, resume: Resume, identity: Mapping[str, Any]) -> Checkpoint | None:
        return None if self.saved is None else Checkpoint(PurePath("the host's checkpoint"), self.saved)

    def check(self, state: Mapping[str, Any]) -> None: ...

    def save(self, state: Mapping[str, Any], *, step: int, tags: Sequence[str]) -> Any:
        return None if self._write is None else self._write(tags, step)

    def write(self, state: Mapping[str, Any], *, step: int, elapsed: float, request: Request) -> Saved | None:
        tags = list(request.tags)
        return Saved(self.save(state, step=step, tags=tags), step, tags)

    def collect(self, *, wait: bool = False) -> list[Saved]:
        return []

    def describe(self, facts: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...
