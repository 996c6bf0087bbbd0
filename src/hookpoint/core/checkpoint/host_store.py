"""HostStore: a store for runs whose checkpoints are written by another library's trainer (the host)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from hookpoint.core.checkpoint.store import Checkpoint, Request, Resume, Saved
from hookpoint.core.team.team import Team


class HostStore:
    """A store whose checkpoints the host writes. A run resumes from the state that the host saved for it.

    `save` takes the tags and the step, writes the host's checkpoint and returns its path. While `save` runs, the attribute
    `state` contains the run's state, which the host adds to its checkpoint.
    """

    def __init__(self, save: Callable[[Sequence[str], int], Any] | None = None) -> None:
        self.saved: Mapping[str, Any] | None = None
        self.state: Mapping[str, Any] | None = None
        self._save = save
        self._team = Team()

    @property
    def saves(self) -> bool:
        """Whether the host can write a checkpoint on request."""
        return self._save is not None

    def join(self, team: Team) -> None:
        self._team = team

    def open(self, resume: Resume, identity: Mapping[str, Any]) -> Checkpoint | None:
        """Return the state to resume from. All ranks resume from the chief's state, even if the number of ranks has changed."""
        if self.saved is None:
            return None
        ranks: list[Any] = [{} for _ in range(self._team.size)]
        return Checkpoint(PurePath("the host's checkpoint"), {**self.saved, "ranks": ranks})

    def check(self, state: Mapping[str, Any]) -> None: ...

    def save(self, state: Mapping[str, Any], *, step: int, tags: Sequence[str]) -> Any:
        if self._save is None:
            return None
        self.state = state
        try:
            return self._save(tags, step)
        finally:
            self.state = None

    def write(self, state: Mapping[str, Any], *, step: int, elapsed: float, request: Request) -> Saved | None:
        tags = list(request.tags)
        return Saved(self.save(state, step=step, tags=tags), step, tags)

    def collect(self, *, wait: bool = False) -> list[Saved]:
        return []

    def describe(self, facts: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...
