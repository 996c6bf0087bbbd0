"""Store: the protocols of a checkpoint store."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from hookpoint.core.schedule.moment import Moment

Resume = str | os.PathLike[str]  # "auto", "never", "must", or the path of a checkpoint

NO_INFO: Mapping[str, Any] = MappingProxyType({})


class Store(Protocol):
    """Store the state of a run. A loop calls `save` only at step boundaries, once for all requested tags."""

    def save(self, state: Mapping[str, Any], *, step: int, tags: Sequence[str]) -> Any:
        """Store the state and return its location. The state is safely on disk when this method returns."""


class Kept(NamedTuple):
    """An existing checkpoint, as passed to the rules that select which checkpoints to keep.

    `elapsed` is the training time in seconds. `moment` is the moment at which the checkpoint was saved. If the checkpoint was
    saved because of a metric's value, `moment` is the moment at which that value was measured.
    """

    name: str
    step: int
    elapsed: float
    moment: Moment | None = None


Keep = Callable[[Sequence[Kept]], Iterable[Kept]]  # takes a tag's checkpoints, oldest first; returns those to keep


class Checkpoint(NamedTuple):
    """A loaded checkpoint: its path, its state, and the values that a saver added to the checkpoint's manifest."""

    path: os.PathLike[str]
    state: Mapping[str, Any]
    info: Mapping[str, Any] = NO_INFO


class Saved(NamedTuple):
    """A checkpoint that is safely on disk."""

    path: os.PathLike[str]
    step: int
    tags: Sequence[str]
    seconds: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """A request for the next checkpoint.

    `tags` maps each requested tag to its rule for which checkpoints to keep, or None. `rules` contains the rules of all savers,
    including those for tags that are not requested this time. `limits` contains the tags whose rules also count other
    checkpoints: those that were saved at the end of the run, at a stop or on a signal. `measured` maps a tag to the measurement
    that caused the save: metric, mode, value and moment. `info` contains values to store in the manifest. `links` contains
    additional names for the checkpoint.
    """

    tags: dict[str, Keep | None] = field(default_factory=dict)
    in_background: bool = True
    rules: Mapping[str, Keep] = field(default_factory=dict)
    limits: Collection[str] = ()
    measured: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    links: Sequence[str] = ()

    def add(self, tag: str, keep: Keep | None, in_background: bool, measured: Mapping[str, Any] | None = None) -> None:
        self.tags[tag] = keep if keep is not None else self.tags.get(tag)
        self.in_background &= in_background
        if measured is not None:
            self.measured[tag] = measured


class ResumableStore(Store, Protocol):
    """A store that a run can resume from. `hookpoint.Loop` and `hookpoint.Runner` use one for their workdir.

    Two methods are optional. `fill(checkpoint, parts)` is for stores whose `open` does not read all tensors. The loop calls it
    before it restores anything, with the result of `open` and the run's objects, which may be sharded. It returns the
    checkpoint with all of its tensors. `described(resume)` is called before `open`. It returns a dict with two keys, or an
    empty dict. The value of "crashes" is the record of earlier crashes that the loop passed to `describe`. The value of
    "has_checkpoint" tells whether there is a checkpoint.
    """

    def open(self, resume: Resume, identity: Mapping[str, Any]) -> Checkpoint | None:
        """Lock the location. Return the checkpoint to resume from, or None for a new run."""

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise an error if a part of the state could not be loaded from a checkpoint.

        The error names that part. Called before the first step.
        """

    def write(self, state: Mapping[str, Any], *, step: int, elapsed: float, request: Request) -> Saved | None:
        """Store the state. Return None if the write continues in the background."""

    def collect(self, *, wait: bool = False) -> list[Saved]:
        """Return the background saves that finished since the last call. Raise the error if one of them failed."""

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Store information about the run, in addition to the information that is already stored.

        The values have plain types.
        """

    def close(self) -> None:
        """Unlock the location."""

    def save(self, state: Mapping[str, Any], *, step: int, tags: Sequence[str]) -> Any:
        """Write the state and return its location."""
        clocks = state.get("clocks")
        elapsed = clocks.get("elapsed", 0.0) if isinstance(clocks, Mapping) else 0.0
        saved = self.write(state, step=step, elapsed=elapsed, request=Request(dict.fromkeys(tags), in_background=False))
        assert saved is not None
        return saved.path
