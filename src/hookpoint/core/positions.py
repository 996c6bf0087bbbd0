"""Positions: where a training pass stands in its data, and how to find back into it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from hookpoint.core.errors import CannotResume, text
from hookpoint.core.randomness import Randomness

logger = logging.getLogger("hookpoint")

END = object()


class Positions(Protocol):
    """Begin training passes, and go on inside of one after a resume, with the order of data that a bare loop would see.

    `remembers` is set by the loop when there may be a checkpoint; otherwise nothing needs to be kept.
    """

    remembers: bool

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        """Return `iter(loader)`; remember what it takes to find back into this pass."""

    def visit(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return `iter(loader)` for a pass that is not training, and is never gone on with in its middle."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the pass that was begun last, and for the one that follows."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned, before the first pass of a resumed run."""

    def resume(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Iterator[Any]:
        """Return an iterator over what follows the first so many batches of the pass that `state` was kept of.

        The generators of random numbers are left anywhere: the loop puts them where they belong, last of all.
        """

    def resume_in_team(
        self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]
    ) -> tuple[Iterator[Any], int]:
        """Do the same where another number of processes has made the checkpoint; return also how many batches are done now.

        `state["moved"]` has the state that the chief has kept as "data", and which process this is.
        """


class PlainPositions:
    """Find back into any iterable: put the generators where the pass began, and read over what was seen."""

    def __init__(self, randomness: Randomness) -> None:
        self.remembers = False
        self._randomness = randomness
        self._begun: dict[str, Any] = {}

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        if self.remembers:
            self._begun = self._randomness.state_dict()
        return iter(loader)

    def visit(self, loader: Iterable[Any]) -> Iterator[Any]:
        return iter(loader)

    def state_dict(self) -> dict[str, Any]:
        return {"begun": self._begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._begun = dict(state["begun"])

    def resume(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Iterator[Any]:
        self._begun = dict(state["begun"])
        self._randomness.load_state_dict(self._begun)
        return read_over(loader, batches, quietly=isinstance(loader, Sequence))

    def resume_in_team(
        self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]
    ) -> tuple[Iterator[Any], int]:
        raise CannotResume(
            text(
                f"{type(loader).__name__} does not say which samples other processes have: another number of them cannot go on"
                " in the middle of its epoch.",
                start="from a checkpoint that was made at the end of an epoch",
            )
        )


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
