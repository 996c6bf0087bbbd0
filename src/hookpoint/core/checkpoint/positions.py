"""Positions: save and restore the position of a training pass in its data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from hookpoint.core.checkpoint.randomness import PlainRandomness
from hookpoint.core.data.data_graph import graph_of
from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import CannotResume
from hookpoint.core.logger import logger

END = object()


class Entered(NamedTuple):
    """A pass that was resumed midway: the remaining batches, the number of batches done, and the total.

    If `total` is None, the total is the loader's length.
    """

    source: Iterator[Any]
    done: int
    total: int | None = None


class Positions:
    """Begin training passes, and resume them midway with the same data order as in an uninterrupted run.

    Positions are recorded only if `remembers` is True. The loop sets it if the run may save checkpoints. `notes` contains a
    line for each difference between the current data and the checkpoint's data. The loop logs the lines and clears the list.

    This class can resume any iterable. It restores the random generators to their state at the start of the pass, then reads
    and drops the batches that the run has already seen. An engine provides a subclass that resumes its own loaders without
    reading these batches.
    """

    def __init__(self, randomness: PlainRandomness) -> None:
        self.remembers, self.notes, self._randomness = False, list[str](), randomness
        self._begun: Mapping[str, Any] = {}
        self._length: int | None = None
        self._expected_length: int | None = None
        self._length_varies = False

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        """Return `iter(loader)`, and record what is needed to resume this pass."""
        if self.remembers:
            self._begun = self._randomness.state_dict()
            self._compare_length(loader)
        return iter(loader)

    def visit(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return `iter(loader)` for a pass other than training. Such a pass is never resumed midway."""
        return iter(loader)

    def describe(self, loader: Any) -> dict[str, Any]:
        """Return a description of a loader's data for the run's record, as plain values. Does not read the data."""
        return {"graph": graph_of(loader), "batches": length_of(loader)}

    def exhaust(self, loader: Iterable[Any], source: Iterator[Any]) -> None:
        """Exhaust the iterator after the last batch, because some loaders count a pass only when it is exhausted."""
        if self.remembers and not isinstance(loader, Sequence):
            next(source, END)

    def leave(self, loader: Any) -> None:
        """Record the state of a loader at the end of a pass, whether or not the loader was exhausted."""

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the state to save in a checkpoint. A resumed run uses it to continue the last pass or to begin the next one.

        `batches` is the number of batches done, if a pass is in progress. If the number of samples in these batches is known,
        the state includes it.
        """
        return {"begun": self._begun, "length": self._length, "length_varies": self._length_varies}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned. Called before the first pass of a resumed run."""
        self._begun = dict(state["begun"])
        self._length_varies = state.get("length_varies", False)
        self._expected_length = None if self._length_varies else state.get("length")

    def resume(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        """Resume the pass described by `state` after its first `batches` batches.

        If the loader's batch size has changed, the number of batches is recomputed from the samples seen, and rounded up. This
        method may leave the random generators in any state, because the loop restores them afterwards.
        """
        self.load_state_dict(state)
        self._expected_length = state.get("length")
        self._compare_length(loader)
        self._randomness.load_state_dict(self._begun)
        return Entered(skip_batches(loader, batches, quietly=isinstance(loader, Sequence)), batches)

    def resume_in_team(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        """Resume a pass from a checkpoint that was saved with a different number of ranks.

        In `state["moved"]`, "data" is the position that the chief saved, and "rank" is the rank of this process.
        """
        kind = type(loader).__name__
        raise CannotResume(
            f"{kind} cannot resume within an epoch with a different number of ranks: the samples seen per rank are unknown.",
            start="from a checkpoint at the end of an epoch",
        )

    def _compare_length(self, loader: Iterable[Any]) -> None:
        length, expected = length_of(loader), self._expected_length
        if expected is not None and length is not None and length != expected:
            self.notes.append(
                f"the training data has {length} batches, but had {expected} in the checkpoint; is it the same data?"
            )
        self._expected_length = None
        self._length_varies |= self._length is not None and length != self._length
        self._length = length


def skip_batches(loader: Iterable[Any], batches: int, *, quietly: bool = False) -> Iterator[Any]:
    """Return an iterator over a loader, after reading and dropping the first `batches` items.

    Log a warning unless `quietly` is True.
    """
    if batches and not quietly:
        kind = type(loader).__name__
        logger.warning(
            "reading and skipping the %d batches before the checkpoint, because %s cannot start in the middle", batches, kind
        )
    source = iter(loader)
    next(islice(source, batches, batches), None)
    return source
