"""Positions: where a training pass stands in its data, and how to find back into it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hookpoint.core.checkpoint.randomness import Randomness
from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import CannotResume

logger = logging.getLogger("hookpoint")

END = object()


class Entered(NamedTuple):
    """A pass that was entered in its middle: what is left of it, how many batches count as done, and how many it has.

    `total` is None where it is the length of the loader.
    """

    source: Iterator[Any]
    done: int
    total: int | None = None


class Positions(Protocol):
    """Begin training passes, and go on inside of one after a resume, with the order of data that a bare loop would see.

    `remembers` is set by the loop when there may be a checkpoint; otherwise nothing needs to be kept. `notes` are lines about
    data that is not that of the checkpoint; the loop reports them, and empties the list.
    """

    remembers: bool
    notes: list[str]

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        """Return `iter(loader)`; remember what it takes to find back into this pass."""

    def visit(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return `iter(loader)` for a pass that is not training, and is never gone on with in its middle."""

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return what a checkpoint keeps of the pass that was begun last, and for the one that follows.

        `batches` are those done of a pass that is open; the state has their number of samples, where that is known.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned, before the first pass of a resumed run."""

    def resume(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        """Enter the pass that `state` was kept of, after its first so many batches.

        If the batches of the loader have another size than they had, the samples that were seen count as the number of batches
        they fill, rounded up. The generators of random numbers are left anywhere: the loop puts them where they belong, last
        of all.
        """

    def resume_in_team(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        """Do the same where another number of processes has made the checkpoint.

        `state["moved"]` has the state that the chief has kept as "data", and which process this is.
        """


class PlainPositions:
    """Find back into any iterable: put the generators where the pass began, and read over what was seen."""

    def __init__(self, randomness: Randomness) -> None:
        self.remembers = False
        self.notes: list[str] = []
        self._randomness = randomness
        self._begun: dict[str, Any] = {}
        self._length: int | None = None
        self._length_varies = False
        self._expected: int | None = None

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        if self.remembers:
            self._begun = self._randomness.state_dict()
            self._compare_length(loader)
        return iter(loader)

    def visit(self, loader: Iterable[Any]) -> Iterator[Any]:
        return iter(loader)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        return {"begun": self._begun, "length": self._length, "length_varies": self._length_varies}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._begun = dict(state["begun"])
        self._length_varies = state.get("length_varies", False)
        self._expected = None if self._length_varies else state.get("length")

    def resume(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        self.load_state_dict(state)
        self._expected = state.get("length")
        self._compare_length(loader)
        self._randomness.load_state_dict(self._begun)
        return Entered(read_over(loader, batches, quietly=isinstance(loader, Sequence)), batches)

    def resume_in_team(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        raise CannotResume(
            f"{type(loader).__name__} does not say which samples other processes have: another number of them cannot go on"
            " in the middle of its epoch.",
            start="from a checkpoint that was made at the end of an epoch",
        )

    def _compare_length(self, loader: Iterable[Any]) -> None:
        length, expected = length_of(loader), self._expected
        if expected is not None and length is not None and length != expected:
            self.notes.append(f"the training data has {length} batches, and had {expected}: is it the same data?")
        self._expected = None
        self._length_varies |= self._length is not None and length != self._length
        self._length = length


def read_over(loader: Iterable[Any], batches: int, *, quietly: bool = False) -> Iterator[Any]:
    """Return an iterator after its first so many items, which are read and dropped; say so unless that costs nothing."""
    if batches and not quietly:
        kind = type(loader).__name__
        logger.warning("reading over the %d batches that were seen before the checkpoint: %s has no position", batches, kind)
    source = iter(loader)
    for _ in range(batches):
        if next(source, END) is END:
            break
    return source
