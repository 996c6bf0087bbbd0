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

from hookpoint.core.checkpoint.positions import Entered, skip_batches
from hookpoint.core.checkpoint.randomness import Randomness
from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import CannotResume
from hookpoint.engine.data import _loader_state, _stateful_loader
from hookpoint.engine.data._data_facts import batch_size_of, compared, facts_of, facts_of_order
from hookpoint.engine.data._loader_record import (
    LoaderRecord,
    batches_ahead,
    has_index,
    has_iterator,
    keeps_own_state,
)
from hookpoint.engine.data._repartition import as_team_state, rest_of, unknown_order
from hookpoint.engine.data._resumed_iterator import resumed_iterator
from hookpoint.engine.data._streams import batches_after, later_batches
from hookpoint.engine.data.hooked_loader import HookedLoader
from hookpoint.engine.data.seeded_samples import seeded_samples_of
from hookpoint.parallel.data.distribute_loader import team_sampler_of
from hookpoint.parallel.data.padded_loader import PaddedLoader
from hookpoint.parallel.data.sampler import TeamBatchSampler

logger = logging.getLogger("hookpoint")

INEXACT = "from here on the run is not bitwise identical to the one that was saved"


class TorchPositions:
    """Find back into the data of a run with torch. Remembering costs some 200 microseconds a pass."""

    def __init__(self, randomness: Randomness) -> None:
        self.remembers = False
        self.notes: list[str] = []
        self._randomness = randomness
        self._begun: Mapping[str, Any] = {}
        self._known: list[LoaderRecord] = []
        self._last: LoaderRecord | None = None
        self._waiting: list[Mapping[str, Any]] = []
        self._rest: TeamBatchSampler | None = None
        self._stream_start = (0, 0)  # so many samples and batches of a stream were seen, before it was cut into others
        self._facts: dict[str, Any] | None = None
        self._facts_vary = False
        self._expected: Mapping[str, Any] = {}
        self._has_warned = False

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        if isinstance(loader, PaddedLoader):
            return loader.resume(self.begin(loader.data, epoch), 0)
        _tell_pass(loader, epoch, goes_on=False)
        self._rest, self._stream_start = None, (0, 0)
        if not self.remembers:
            return iter(loader)
        self._meet_facts(loader, in_epoch=False)
        self._begun = self._randomness.state_dict()
        self._last, record = self._meet(loader, trains=True)
        return self._iterator(loader, self._last, record)

    def visit(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return `iter(loader)` for a pass that is not training; what it draws, an uninterrupted run draws too."""
        if not self.remembers:
            return iter(loader)
        return self._iterator(loader, *self._meet(loader, trains=False))

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        alive = [(known, loader) for known in self._known if (loader := known.reference()) is not None]
        last = next((number for number, (known, _) in enumerate(alive) if known is self._last), None)
        return {
            "begun": self._begun,
            "last": last,
            "loaders": [*(known.state_of(loader) for known, loader in alive), *self._waiting],
            "rest": None if self._rest is None else {"rank": self._rest.rank, **self._rest.state_dict()},
            "facts": self._facts,
            "facts_vary": self._facts_vary,
            "samples": None if batches is None else self._samples_of(batches),
            "stream_start": list(self._stream_start),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._begun = state["begun"]
        self._waiting = list(state.get("loaders", ()))  # none where torch was not in use when it was saved
        self._facts_vary = state.get("facts_vary", False)
        self._expected = {} if self._facts_vary else _facts_in(state)

    def resume(self, loader: Any, epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        if isinstance(loader, PaddedLoader):
            entered = self.resume(loader.data, epoch, loader.resume_at(batches), state)
            if self._rest is not None or any(self._stream_start):
                raise _cannot_cut(loader.data)
            return Entered(loader.resume(entered.source, batches), batches)
        self.load_state_dict(state)
        record = None if state.get("last") is None else self._waiting.pop(state["last"])
        _tell_pass(loader, epoch, goes_on=True)
        self._last, _ = self._meet(loader, trains=True, adopts=False)
        if record is not None:
            _loader_state.put_counters(loader, record["begun"], record["first"], in_pass=True)  # a batch size may be one
        self._expected = expected = _facts_in(state)
        self._meet_facts(loader, in_epoch=True)
        if self._last is not None and record is not None:
            self._last.go_on(loader, record)
        had, has = expected.get("batch_size"), batch_size_of(loader)
        is_cut_anew = "batch_size" in expected and had != has
        if is_cut_anew and (had is None or has is None):
            raise _cannot_cut(loader)
        begin = partial(self._put_back, loader, record)
        if not has_index(loader) and (is_cut_anew or any(state.get("stream_start", ()))):
            entered = self._cut_stream_anew(loader, record, batches, state, begin, is_cut_anew=is_cut_anew)
        elif record is not None and record["own"] is not None and keeps_own_state(loader):
            entered = Entered(
                _stateful_loader.rest_of_pass(loader, record["own"], record["own_before"], batches, begin), batches
            )
        elif state.get("rest") is not None:
            rest = state["rest"]
            entered = self._iterator_of_rest(loader, rest, batches, rest["rank"], rest["size"])
        elif has_index(loader) and is_cut_anew:
            entered = self._cut_anew(loader, record, batches, begin)
        elif has_index(loader):
            had_iterator = record is not None and record["had_iterator"]
            self._warn_of_workers(loader, batches > 0 or had_iterator)
            source = resumed_iterator(loader, batches, begin, partial(self._hold, loader), had_iterator=had_iterator)
            entered = Entered(source, batches)
        else:
            begin()
            entered = Entered(skip_batches(loader, batches, quietly=isinstance(loader, Sequence)), batches)
        if is_cut_anew:
            rest = f"the rest of epoch {epoch} is cut into batches of {has}, from batch {entered.done} on"
            self.notes.append(f"the batch size is {has}, and was {had}: {rest}; {INEXACT}")
        if record is not None and record["ahead"] == batches_ahead(loader):
            # Drawn by others than the sampler too, they may stand elsewhere than it has left them.
            _loader_state.put_generators(loader, record["now"])
        return entered

    def resume_in_team(self, loader: Any, epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        """Go on in a pass that a team of another size has begun, from the first sample that nobody has seen."""
        if isinstance(loader, PaddedLoader):
            raise unknown_order(loader.data)
        moved, kept = state["moved"], state["moved"]["data"]
        _tell_pass(loader, epoch, goes_on=True)
        if not has_index(loader) or kept.get("last") is None:
            raise unknown_order(loader)
        self._last, _ = self._meet(loader, trains=True, adopts=False)
        if self._last is not None:
            self._last.begin(loader)
        record, order = kept["loaders"][kept["last"]], kept.get("rest")
        self._expected = _facts_in(kept)
        self._meet_facts(loader, in_epoch=True)
        self._begun = self._randomness.state_dict()
        if order is None:
            begin = partial(self._randomness.load_state_dict, kept["begun"])
            order = as_team_state(record.get("order"), record, begin, loader)
            self._randomness.load_state_dict(self._begun)
        return self._iterator_of_rest(loader, order, batches, moved["rank"], moved["to"])

    def _cut_anew(self, loader: Any, record: Mapping[str, Any] | None, batches: int, begin: Callable[[], None]) -> Entered:
        """Cut what is left of a pass into batches of another size."""
        order = None if record is None else record.get("order")
        if record is None or order is None:
            raise _cannot_cut(loader)
        team = team_sampler_of(loader)
        rank, size = (0, 1) if team is None else (team.rank, team.size)
        if order["kind"] == "distributed":
            rank, size = loader.sampler.rank, loader.sampler.num_replicas
        order = as_team_state(order, record, begin, loader, is_same_team=True)
        return self._iterator_of_rest(loader, order, batches, rank, size)

    def _cut_stream_anew(
        self,
        loader: DataLoader[Any],
        record: Mapping[str, Any] | None,
        batches: int,
        state: Mapping[str, Any],
        begin: Callable[[], None],
        *,
        is_cut_anew: bool,
    ) -> Entered:
        """Do the same with a stream, or go on in one that was cut anew before. Workers would have other samples each."""
        if loader.num_workers:
            raise _cannot_cut(loader)
        seen, size = state["samples"], batch_size_of(loader)
        assert size is not None
        done = -(-seen // size) if is_cut_anew else batches
        self._stream_start = (seen, done) if is_cut_anew else (state["stream_start"][0], state["stream_start"][1])
        if record is not None and record["own"] is not None and keeps_own_state(loader):
            source = _stateful_loader.rest_of_pass(loader, record["own"], record["own_before"], batches, begin)
        else:
            begin()
            source = later_batches(loader, seen)
        left = batches_after(loader, seen, size)
        return Entered(source, done, None if left is None else done + left)

    def _iterator_of_rest(self, loader: Any, order: Mapping[str, Any], batches: int, rank: int, size: int) -> Entered:
        """Enter a pass after so many batches of a team's, which may be other ones than this one's."""
        left, self._rest, done = rest_of(loader, order, batches, rank, size)
        iterator = resumed_iterator(left, done - self._rest.first, lambda: None, None, had_iterator=False)
        return Entered(iterator, done, len(self._rest))

    def _samples_of(self, batches: int) -> int | None:
        """Return how many samples so many batches of the open pass have, of all processes; None where nobody knows."""
        loader = None if self._last is None else self._last.reference()
        sampler, size = self._rest or team_sampler_of(loader), batch_size_of(loader)
        if sampler is not None:
            return sampler.seen(batches)
        if size is None:
            return None
        samples, first = self._stream_start
        seen = samples + (batches - first) * size
        length = length_of(loader.sampler) if has_index(loader) else None
        return seen if length is None else min(seen, length)

    def _meet_facts(self, loader: Any, *, in_epoch: bool) -> None:
        """Compare the data with that of the checkpoint, the first time after a resume; remember what it is."""
        facts, expected = facts_of(loader), self._expected
        self._expected = {}
        if changed := compared(expected, facts, in_epoch=in_epoch):
            self.notes.append(f"the training data is not that of the checkpoint:\n{changed}")
        had, has = expected.get("batch_size"), facts.get("batch_size")
        if not in_epoch and had is not None and has != had:
            self.notes.append(f"the batch size is {has}, and was {had}: {INEXACT}")
        self._facts_vary |= self._facts is not None and facts != self._facts
        self._facts = facts

    def _meet(self, loader: Any, *, trains: bool, adopts: bool = True) -> tuple[LoaderRecord | None, Mapping[str, Any] | None]:
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
        new = LoaderRecord(loader, reference, trains=trains, is_made_anew=had_another)
        self._known = [*(known for known in self._known if known.reference() is not None), new]
        record = next((one for one in self._waiting if one["trains"] == trains), None) if adopts else None
        if record is not None:
            self._waiting = [one for one in self._waiting if one is not record]
            new.adopt(loader, record)
        return new, None if new.is_made_anew else record

    def _iterator(self, loader: Iterable[Any], known: LoaderRecord | None, record: Mapping[str, Any] | None) -> Iterator[Any]:
        """Begin a pass, as the run would that was saved."""
        if known is None:
            return iter(loader)
        known.begin(loader)
        if record is not None and record["own"] is not None and keeps_own_state(loader):
            return _stateful_loader.next_pass(loader, record["own"], self._hold(loader))
        if isinstance(loader, DataLoader) and known.had_iterator and not has_iterator(loader):
            self._warn_of_workers(loader, known.trains)
            return resumed_iterator(loader, 0, self._hold(loader), None, had_iterator=True)
        return iter(loader)

    def _put_back(self, loader: Any, record: Mapping[str, Any] | None) -> None:
        if self._begun:
            self._randomness.load_state_dict(self._begun)
        if record is not None:
            _loader_state.put_generators(loader, record["begun"])
            _loader_state.put_counters(loader, record["begun"], record["first"], in_pass=True)

    def _hold(self, loader: Any) -> Callable[[], None]:
        """Return what puts the generators back to where they stand now."""
        found, own = self._randomness.state_dict(), _loader_state.read(loader)

        def put_back() -> None:
            self._randomness.load_state_dict(found)
            _loader_state.put_generators(loader, own)

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


def _facts_in(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a checkpoint says of the data of its last training pass."""
    if state.get("last") is None or "facts" in state:
        return state.get("facts") or {}
    return facts_of_order(state["loaders"][state["last"]].get("order"))


def _cannot_cut(loader: Any) -> CannotResume:
    return CannotResume(
        f"{type(loader).__name__} has another batch size than the checkpoint, which was made in the middle of an epoch, and"
        " its samples cannot be cut into other batches.",
        give="the batch size as it was",
        resume="from a checkpoint made at the end of an epoch: resume='.../checkpoints/step-...'",
    )


def _tell_pass(loader: Any, epoch: int, *, goes_on: bool) -> None:
    sampler = team_sampler_of(loader)
    if sampler is not None and not goes_on:
        sampler.begin_pass()
    for samples in seeded_samples_of(getattr(loader, "dataset", None)):
        samples.set_epoch(epoch)
    if isinstance(loader, HookedLoader):
        loader.settings.goes_on = goes_on
