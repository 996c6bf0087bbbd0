"""Store: what keeps checkpoints. The core knows these protocols only."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hookpoint.core.schedule.moment import Moment

Resume = str | os.PathLike[str]  # "auto", "never", "must", or where a checkpoint is


class Store(Protocol):
    """Keep a run's state. A loop calls it at step boundaries only, once for all tags that were asked for."""

    def save(self, state: Mapping[str, Any], *, step: int, tags: Sequence[str]) -> Any:
        """Keep the state and return where it is; it is on disk for good when this returns."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint that is there, as a rule sees it that says which ones to keep.

    `elapsed` is seconds of training. `moment` is that of the value the checkpoint was saved for, or else its own.
    """

    name: str
    step: int
    elapsed: float
    moment: Moment | None = None


Keep = Callable[[Sequence[Kept]], Iterable[Kept]]  # of the checkpoints with a tag, the oldest first: those to keep


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was read: what was saved, and where it is."""

    path: os.PathLike[str]
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is on disk for good."""

    path: os.PathLike[str]
    step: int
    tags: Sequence[str]
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Request:
    """What is asked of the next checkpoint: its tags, with the rule for each that has one, and whether it may be late.

    `rules` are those of all savers, also of tags that are not asked for this time: which checkpoints of theirs are kept.
    `limits` are the tags among them whose rule counts the checkpoint of the end, of a stop or of a signal too. `measured` has,
    by tag, the value that a checkpoint is saved for: metric, mode, value, and the moment it was measured at.
    """

    tags: dict[str, Keep | None] = field(default_factory=dict)
    in_background: bool = True
    rules: Mapping[str, Keep] = field(default_factory=dict)
    limits: Collection[str] = ()
    measured: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def add(self, tag: str, keep: Keep | None, in_background: bool, measured: Mapping[str, Any] | None = None) -> None:
        self.tags[tag] = keep if keep is not None else self.tags.get(tag)
        self.in_background &= in_background
        if measured is not None:
            self.measured[tag] = measured


class ResumableStore(Store, Protocol):
    """A store that a run is resumed from, as `hookpoint.Loop` and `hookpoint.Runner` have one for their workdir.

    One with a method `fill(found, parts)` may read tensors late: it is given what `open` has returned and the objects of the
    run, as its processes share them, before anything is put back, and returns the checkpoint with all of its tensors.
    One with a method `described(resume)` is asked before `open` for the `crashes` of earlier starts, as `describe` was told
    them, and whether it `has_checkpoint`.
    """

    def open(self, resume: Resume, identity: Mapping[str, Any]) -> Checkpoint | None:
        """Take possession of the place, and return what to resume from, or None for a fresh run."""

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuse what could not be read back, naming it; before the first step."""

    def write(self, state: Mapping[str, Any], *, step: int, elapsed: float, request: Request) -> Saved | None:
        """Keep the state; return None where it is still being written, in the background."""

    def collect(self, *, wait: bool = False) -> list[Saved]:
        """Return what the background has finished, once, or raise what it failed with."""

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Write down what is known of the run now, of plain types, beside what was known before."""

    def close(self) -> None:
        """Let go of the place."""
