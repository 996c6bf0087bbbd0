"""Positions with torch: go on in the middle of a DataLoader's pass, in the order a bare loop would see, and read nothing twice.

How, by what the data is:

- A DataLoader over a data set with an index: the generators are put where the pass began, and the sampler, not the data, is
  read over. This holds for torchdata's StatefulDataLoader too: by its own way, the order of later epochs gets lost when it has
  a `generator` and no workers. The state of its data set is kept where there are no workers.
- Anything else with `state_dict` and `load_state_dict`: it is asked to find back by itself.
- Any other iterable, and a DataLoader over an IterableDataset: it is read over.

Exact are the batches of this pass and of all that follow. Not restored are random numbers that worker processes draw inside of
a data set, unless it is wrapped in `SeededSamples`; nor indices that a sampler draws one by one from a global generator, ahead
for workers, if the training draws from the same one.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from hookpoint.core.positions import read_over
from hookpoint.core.randomness import Randomness
from hookpoint.engine import loader_state, own_state
from hookpoint.engine.behind import iterator_behind
from hookpoint.engine.hooked_loader import HookedLoader
from hookpoint.engine.known_loader import (
    KnownLoader,
    batches_ahead,
    has_index,
    has_iterator,
    keeps_own_state,
)
from hookpoint.engine.seeded_samples import seeded_samples_of
from hookpoint.engine.shared_order import as_team_state, rest_of, unknown_order
from hookpoint.parallel.lengthened import Lengthened
from hookpoint.parallel.sampler import TeamBatchSampler
from hookpoint.parallel.spread import team_sampler_of

logger = logging.getLogger("hookpoint")


class TorchPositions:
    """Find back into the data of a run with torch. Remembering costs some 100 microseconds a pass."""

    def __init__(self, randomness: Randomness) -> None:
        self.remembers = False
        self._randomness = randomness
        self._begun: Mapping[str, Any] = {}
        self._known: list[KnownLoader] = []
        self._last: KnownLoader | None = None
        self._waiting: list[Mapping[str, Any]] = []
        self._rest: TeamBatchSampler | None = None
        self._has_warned = False

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        if isinstance(loader, Lengthened):
            return loader.after(self.begin(loader.data, epoch), 0)
        _tell_pass(loader, epoch, goes_on=False)
        self._rest = None
        if not self.remembers:
            return iter(loader)
        self._begun = self._randomness.state_dict()
        self._last, record = self._meet(loader, trains=True)
        return self._iterator(loader, self._last, record)

    def visit(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return `iter(loader)` for a pass that is not training; what it draws, an uninterrupted run draws too."""
        if not self.remembers:
            return iter(loader)
        return self._iterator(loader, *self._meet(loader, trains=False))

    def state_dict(self) -> dict[str, Any]:
        alive = [(known, loader) for known in self._known if (loader := known.reference()) is not None]
        last = next((number for number, (known, _) in enumerate(alive) if known is self._last), None)
        return {
            "begun": self._begun,
            "last": last,
            "loaders": [*(known.state_of(loader) for known, loader in alive), *self._waiting],
            "rest": None if self._rest is None else {"rank": self._rest.rank, **self._rest.state_dict()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._begun = state["begun"]
        self._waiting = list(state.get("loaders", ()))  # none where torch was not in use when it was saved

    def resume(self, loader: Any, epoch: int, batches: int, state: Mapping[str, Any]) -> Iterator[Any]:
        if isinstance(loader, Lengthened):
            return loader.after(self.resume(loader.data, epoch, loader.begin_at(batches), state), batches)
        self.load_state_dict(state)
        record = None if state.get("last") is None else self._waiting.pop(state["last"])
        _tell_pass(loader, epoch, goes_on=True)
        self._last, _ = self._meet(loader, trains=True, adopts=False)
        if self._last is not None and record is not None:
            self._last.go_on(loader, record)
        begin = partial(self._put_back, loader, record)
        if record is not None and record["own"] is not None and keeps_own_state(loader):
            iterator = own_state.rest_of_pass(loader, record["own"], record["own_before"], batches, begin)
        elif state.get("rest") is not None:
            rest = state["rest"]
            iterator, _ = self._iterator_of_rest(loader, rest, batches, rest["rank"], rest["size"])
        elif has_index(loader):
            had_iterator = record is not None and record["had_iterator"]
            self._warn_of_workers(loader, batches > 0 or had_iterator)
            iterator = iterator_behind(loader, batches, begin, partial(self._hold, loader), had_iterator=had_iterator)
        else:
            begin()
            iterator = read_over(loader, batches, quietly=isinstance(loader, Sequence))
        if record is not None and record["ahead"] == batches_ahead(loader):
            # Drawn by others than the sampler too, they may stand elsewhere than it has left them.
            loader_state.put_generators(loader, record["now"])
        return iterator

    def resume_in_team(self, loader: Any, epoch: int, batches: int, state: Mapping[str, Any]) -> tuple[Iterator[Any], int]:
        """Go on in a pass that a team of another size has begun, from the first sample that nobody has seen.

        Returns an iterator, and how many batches of this team's size are done.
        """
        if isinstance(loader, Lengthened):
            raise unknown_order(loader.data)
        moved, kept = state["moved"], state["moved"]["data"]
        _tell_pass(loader, epoch, goes_on=True)
        if not has_index(loader) or kept.get("last") is None:
            raise unknown_order(loader)
        self._last, _ = self._meet(loader, trains=True, adopts=False)
        if self._last is not None:
            self._last.begin(loader)
        record, order = kept["loaders"][kept["last"]], kept.get("rest")
        self._begun = self._randomness.state_dict()
        if order is None:
            begin = partial(self._randomness.load_state_dict, kept["begun"])
            order = as_team_state(record.get("order"), record, begin, loader)
            self._randomness.load_state_dict(self._begun)
        return self._iterator_of_rest(loader, order, batches, moved["rank"], moved["to"])

    def _iterator_of_rest(
        self, loader: Any, order: Mapping[str, Any], batches: int, rank: int, size: int
    ) -> tuple[Iterator[Any], int]:
        """Return an iterator of what follows so many batches of a team's, and how many of this one's are done."""
        left, self._rest, done = rest_of(loader, order, batches, rank, size)
        iterator = iterator_behind(left, done - self._rest.first, lambda: None, None, had_iterator=False)
        return iterator, done

    def _meet(self, loader: Any, *, trains: bool, adopts: bool = True) -> tuple[KnownLoader | None, Mapping[str, Any] | None]:
        """Return what is known of a loader, and what a checkpoint says of it if this is its first pass after a resume.

        Loaders have no names. The first one that comes after a resume is the first one that came before it, and so on.
        """
        for known in self._known:
            if known.reference() is loader:
                return known, None
        try:
            reference = weakref.ref(loader)
        except TypeError:  # a list, or another builtin: there is nothing to know of it
            return None, None
        had_another = any(known.trains == trains and known.reference() is None for known in self._known)
        new = KnownLoader(loader, reference, trains=trains, is_made_anew=had_another)
        self._known = [*(known for known in self._known if known.reference() is not None), new]
        record = next((one for one in self._waiting if one["trains"] == trains), None) if adopts else None
        if record is not None:
            self._waiting = [one for one in self._waiting if one is not record]
            new.adopt(loader, record)
        return new, None if new.is_made_anew else record

    def _iterator(self, loader: Iterable[Any], known: KnownLoader | None, record: Mapping[str, Any] | None) -> Iterator[Any]:
        """Begin a pass, as the run would that was saved."""
        if known is None:
            return iter(loader)
        known.begin(loader)
        if record is not None and record["own"] is not None and keeps_own_state(loader):
            return own_state.next_pass(loader, record["own"], self._hold(loader))
        if isinstance(loader, DataLoader) and known.had_iterator and not has_iterator(loader):
            self._warn_of_workers(loader, known.trains)
            return iterator_behind(loader, 0, self._hold(loader), None, had_iterator=True)
        return iter(loader)

    def _put_back(self, loader: Any, record: Mapping[str, Any] | None) -> None:
        if self._begun:
            self._randomness.load_state_dict(self._begun)
        if record is not None:
            loader_state.put_generators(loader, record["begun"])
            loader_state.put_counters(loader, record["begun"], record["first"], in_pass=True)

    def _hold(self, loader: Any) -> Callable[[], None]:
        """Return what puts the generators back to where they stand now."""
        found, own = self._randomness.state_dict(), loader_state.read(loader)

        def put_back() -> None:
            self._randomness.load_state_dict(found)
            loader_state.put_generators(loader, own)

        return put_back

    def _warn_of_workers(self, loader: DataLoader[Any], is_inexact: bool) -> None:
        if not loader.num_workers or self._has_warned:
            return
        if not loader.in_order:
            self._has_warned = True
            logger.warning("workers deliver batches in any order (in_order=False): some may come again, or not at all")
        elif is_inexact and next(seeded_samples_of(loader.dataset), None) is None:
            self._has_warned = True
            cure = "wrap it in hookpoint.SeededSamples" if has_index(loader) else "seed them in its __iter__"
            logger.warning(
                "random numbers drawn inside the data set by worker processes are not restored; %s if it draws any", cure
            )


def _tell_pass(loader: Any, epoch: int, *, goes_on: bool) -> None:
    sampler = team_sampler_of(loader)
    if sampler is not None and not goes_on:
        sampler.begin_pass()
    for samples in seeded_samples_of(getattr(loader, "dataset", None)):
        samples.set_epoch(epoch)
    if isinstance(loader, HookedLoader):
        loader.settings.goes_on = goes_on
