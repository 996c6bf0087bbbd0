"""Data position: resume in the middle of a loader's pass, with the same batches as in an uninterrupted run.

- For a DataLoader over a map-style dataset, the generators are reset to the beginning of the pass. Then the sampler skips the
  batches that are done, without reading their data. This also applies to torchdata's StatefulDataLoader, because its own
  way of resuming loses the order of later epochs if the loader has a `generator` and no workers. Without workers, the
  dataset's state is also stored.
- Any other loader with `state_dict` and `load_state_dict` restores its position itself.
- All other loaders are read from the beginning, and the batches that are done are discarded. Examples are plain iterables, a
  DataLoader over an IterableDataset, and a loader that Accelerate has prepared.

A resumed run reads the same batches as an uninterrupted run, in the rest of the interrupted pass and in all later passes. There
are two exceptions. Random numbers that worker processes draw inside a dataset are not restored, unless the dataset is wrapped
in `SeededSamples`. The second exception is a sampler that draws indices one by one from a global generator. If training
also uses this generator and the workers prefetch batches, the indices may differ.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from hookpoint.core.checkpoint.positions import END, Entered, Positions, skip_batches
from hookpoint.core.checkpoint.randomness import PlainRandomness
from hookpoint.core.data.data_graph import graph_of
from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import CannotResume
from hookpoint.core.logger import logger
from hookpoint.engine.data import _loader_state
from hookpoint.engine.data._data_facts import (
    batch_size_of,
    compared,
    digest_of,
    facts_of,
    facts_of_order,
    facts_of_pass,
    has_own_sampler,
)
from hookpoint.engine.data._loader_record import LoaderRecord, batches_ahead, has_index, has_iterator, is_stateful, is_wrapper
from hookpoint.engine.data._repartition import State, as_team_state, rest_of, unknown_order
from hookpoint.engine.data._resumed_iterator import (
    Restore,
    batches_after,
    next_pass,
    rest_of_pass,
    resumed_iterator,
    skip_samples,
    start_workers,
)
from hookpoint.engine.data.hooked_loader import HookedLoader
from hookpoint.engine.data.seeded_samples import seeded_samples_of
from hookpoint.parallel.data.distribute_loader import team_sampler_of
from hookpoint.parallel.data.padded_loader import PaddedLoader
from hookpoint.parallel.data.sampler import TeamBatchSampler

INEXACT = "from here on, the run is not bitwise identical to the saved run"


class TorchPositions(Positions):
    """Save and restore the position of a run in its torch data loaders. The cost is about 200 microseconds per pass."""

    def __init__(self, randomness: PlainRandomness) -> None:
        super().__init__(randomness)
        self._records: list[LoaderRecord] = []
        self._last: LoaderRecord | None = None
        self._unclaimed: list[State] = []  # the checkpoint's records of loaders that this run has not used yet
        self._rest: TeamBatchSampler | None = None
        # The number of samples and the number of batches before the batch size of an iterable dataset changed in this pass.
        # Both numbers are 0 if the batch size did not change.
        self._stream_start = (0, 0)
        self._facts: dict[str, Any] | None = None
        self._facts_vary = False
        self._expected: State = {}
        self._has_warned = False

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        if isinstance(loader, PaddedLoader):
            return loader.resume(self.begin(loader.data, epoch), 0)
        _begin_pass(loader, epoch, resumes=False)
        self._rest, self._stream_start = None, (0, 0)
        if not self.remembers:
            return iter(loader)
        self._compare_facts(loader, in_epoch=False)
        self._begun = self._randomness.state_dict()
        self._last, saved = self._record_of(loader, trains=True)
        return self._iterator(loader, self._last, saved)

    def visit(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator for a validation or prediction pass, with the same random numbers as in an uninterrupted run."""
        if not self.remembers:
            return iter(loader)
        return self._iterator(loader, *self._record_of(loader, trains=False))

    def describe(self, loader: Any) -> dict[str, Any]:
        data = loader.data if isinstance(loader, PaddedLoader) else loader
        return {"graph": graph_of(data, digest_of), "batches": length_of(loader), **facts_of(data)}

    def exhaust(self, loader: Iterable[Any], source: Iterator[Any]) -> None:
        # torch's RandomSampler draws from the loader's generator again when it is exhausted, with or without checkpoints. Some
        # other loaders count a pass only then. Loaders with their own state do not have to be exhausted.
        if has_index(loader):
            next(source, END)
        elif not is_stateful(loader):
            super().exhaust(loader, source)

    def leave(self, loader: Any) -> None:
        loader = loader.data if isinstance(loader, PaddedLoader) else loader
        for record in self._records:
            if record.reference() is loader:
                record.datasets.end(loader)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        alive = [(record, loader) for record in self._records if (loader := record.reference()) is not None]
        last = next((number for number, (record, _) in enumerate(alive) if record is self._last), None)
        return {
            "begun": self._begun,
            "last": last,
            "loaders": [*(record.state_of(loader) for record, loader in alive), *self._unclaimed],
            "rest": None if self._rest is None else {"rank": self._rest.rank, **self._rest.state_dict()},
            "facts": self._facts,
            "facts_vary": self._facts_vary,
            "samples": None if batches is None else self._samples_of(batches),
            "stream_start": list(self._stream_start),
        }

    def load_state_dict(self, state: State) -> None:
        self._begun = state["begun"]
        self._unclaimed = list(state.get("loaders", ()))  # a checkpoint that was saved without torch has no loaders
        self._facts_vary = state.get("facts_vary", False)
        self._expected = {} if self._facts_vary else _facts_in(state)

    def resume(self, loader: Any, epoch: int, batches: int, state: State) -> Entered:
        if isinstance(loader, PaddedLoader):
            entered = self.resume(loader.data, epoch, loader.resume_at(batches), state)
            if self._rest is not None or any(self._stream_start):
                raise _cannot_split(loader.data)
            return Entered(loader.resume(entered.source, batches), batches)
        self.load_state_dict(state)
        saved = None if state.get("last") is None else self._unclaimed.pop(state["last"])
        _begin_pass(loader, epoch, resumes=True)
        self._last, _ = self._record_of(loader, trains=True, claims=False)
        if saved is not None:
            # Restoring the counters may change the batch size.
            _loader_state.put_counters(loader, saved["begun"], saved["first"], in_pass=True)
        self._expected = expected = _facts_in(state)
        self._compare_facts(loader, in_epoch=True)
        if self._last is not None and saved is not None:
            self._last.resume(loader, saved)
        old, new = expected.get("batch_size"), batch_size_of(loader)
        is_resized = "batch_size" in expected and old != new
        if is_resized and (old is None or new is None or is_wrapper(loader)):
            raise _cannot_split(loader)
        begin = partial(self._restore, loader, saved)
        if not has_index(loader) and (is_resized or any(state.get("stream_start", ()))):
            entered = self._resume_stream(loader, saved, batches, state, begin, is_resized=is_resized)
        elif saved is not None and saved["own"] is not None and is_stateful(loader):
            entered = Entered(rest_of_pass(loader, saved, batches, begin), batches)
        elif state.get("rest") is not None:
            rest = state["rest"]
            entered = self._resume_rest(loader, rest, batches, rest["rank"], rest["size"])
        elif has_index(loader) and is_resized:
            entered = self._resume_resized(loader, saved, batches, begin)
        elif has_index(loader):
            had_iterator = saved is not None and saved["had_iterator"]
            self._warn_of_workers(loader, batches > 0 or had_iterator)
            source = resumed_iterator(loader, batches, begin, partial(self._save, loader), had_iterator=had_iterator)
            entered = Entered(source, batches)
        else:
            if is_wrapper(loader):
                self._warn_of_workers(loader, batches > 0)
                if saved is not None and saved["had_iterator"]:
                    start_workers(loader, begin)
            begin()
            entered = Entered(skip_batches(loader, batches, quietly=isinstance(loader, Sequence)), batches)
        if is_resized:
            rest = f"the rest of epoch {epoch} is split into batches of {new}, from batch {entered.done} on"
            self.notes.append(f"the batch size is {new}, but was {old}: {rest}; {INEXACT}")
        if saved is not None and saved["ahead"] == batches_ahead(loader):
            # Code other than the sampler may also draw from these generators, so their saved state is restored last.
            _loader_state.put_generators(loader, saved["now"])
            if has_index(loader):  # otherwise, the dataset draws the same numbers again while the samples are skipped
                _loader_state.put_dataset_generators(loader, saved["now"])
        return entered

    def resume_in_team(self, loader: Any, epoch: int, batches: int, state: State) -> Entered:
        """Resume a pass that was saved with a different number of ranks, from the first sample that no rank has used."""
        if isinstance(loader, PaddedLoader):
            raise unknown_order(loader.data)
        moved, data = state["moved"], state["moved"]["data"]
        _begin_pass(loader, epoch, resumes=True)
        if not has_index(loader) or data.get("last") is None:
            raise unknown_order(loader)
        self._last, _ = self._record_of(loader, trains=True, claims=False)
        if self._last is not None:
            self._last.begin(loader)
        saved, order = data["loaders"][data["last"]], data.get("rest")
        self._expected = _facts_in(data)
        self._compare_facts(loader, in_epoch=True)
        self._begun = self._randomness.state_dict()
        if order is None:
            begin = partial(self._randomness.load_state_dict, data["begun"])
            order = as_team_state(saved.get("order"), saved, begin, loader)
            self._randomness.load_state_dict(self._begun)
        return self._resume_rest(loader, order, batches, moved["rank"], moved["to"])

    def _resume_resized(self, loader: Any, saved: State | None, batches: int, begin: Restore) -> Entered:
        """Split the rest of a pass into batches of a different size."""
        order = None if saved is None else saved.get("order")
        if saved is None or order is None:
            raise _cannot_split(loader)
        team = team_sampler_of(loader)
        rank, size = (0, 1) if team is None else (team.rank, team.size)
        if order["kind"] == "distributed":
            rank, size = loader.sampler.rank, loader.sampler.num_replicas
        order = as_team_state(order, saved, begin, loader, is_same_team=True)
        return self._resume_rest(loader, order, batches, rank, size)

    def _resume_stream(
        self, loader: DataLoader[Any], saved: State | None, batches: int, state: State, begin: Restore, *, is_resized: bool
    ) -> Entered:
        """Split the rest of an iterable dataset into batches of a different size, or resume a pass that was split."""
        if loader.num_workers:  # workers would receive different samples than in the saved run
            raise _cannot_split(loader)
        seen, size = state["samples"], batch_size_of(loader)
        assert size is not None
        done = -(-seen // size) if is_resized else batches
        self._stream_start = (seen, done) if is_resized else (state["stream_start"][0], state["stream_start"][1])
        if saved is not None and saved["own"] is not None and is_stateful(loader):
            source = rest_of_pass(loader, saved, batches, begin)
        else:
            begin()
            source = skip_samples(loader, seen)
        left = batches_after(loader, seen, size)
        return Entered(source, done, None if left is None else done + left)

    def _resume_rest(self, loader: Any, order: State, batches: int, rank: int, size: int) -> Entered:
        """Resume a pass after the first `batches` batches. `order` is the state of a TeamBatchSampler."""
        left, self._rest, done = rest_of(loader, order, batches, rank, size)
        iterator = resumed_iterator(left, done - self._rest.first, lambda: None, None, had_iterator=False)
        return Entered(iterator, done, len(self._rest))

    def _samples_of(self, batches: int) -> int | None:
        """Return how many samples the first `batches` batches of this pass contain, or None if this number is unknown.

        If hookpoint distributes the loader's batches over the ranks, the samples of all ranks are counted.
        """
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

    def _compare_facts(self, loader: Any, *, in_epoch: bool) -> None:
        """Record properties of the training loader, such as its dataset and batch size.

        The first call after a resume compares these properties with the properties that the checkpoint contains.
        """
        facts, expected = facts_of_pass(loader), self._expected
        self._expected = {}
        if self._facts_vary or (not in_epoch and has_own_sampler(loader)):
            expected = {name: value for name, value in expected.items() if name != "drawn"}
        if changed := compared(expected, facts, in_epoch=in_epoch):
            self.notes.append(f"the training data differs from the data in the checkpoint:\n{changed}")
        old, new = expected.get("batch_size"), facts.get("batch_size")
        if not in_epoch and old is not None and new != old:
            self.notes.append(f"the batch size is {new}, but was {old}: {INEXACT}")
        self._facts_vary |= self._facts is not None and facts != self._facts
        self._facts = facts

    def _record_of(self, loader: Any, *, trains: bool, claims: bool = True) -> tuple[LoaderRecord | None, State | None]:
        """Return the record of a loader. In the loader's first pass after a resume, also return its state from the checkpoint.

        Loaders have no names. A new loader therefore gets the first state in the checkpoint that no other loader has taken. A
        training loader takes only the state of a training loader, and any other loader only the state of a non-training loader.
        """
        for record in self._records:
            if record.reference() is loader:
                return record, None
        try:
            reference = weakref.ref(loader)
        except TypeError:  # lists and other builtin objects have no state
            return None, None
        gone = [record for record in self._records if record.trains == trains and record.reference() is None]
        new = LoaderRecord(loader, reference, trains=trains, before=gone[-1] if gone else None)
        self._records = [*(record for record in self._records if record.reference() is not None), new]
        saved = next((one for one in self._unclaimed if one["trains"] == trains), None) if claims else None
        if saved is not None:
            self._unclaimed = [one for one in self._unclaimed if one is not saved]
            new.load(loader, saved)
        return new, None if new.is_made_anew else saved

    def _iterator(self, loader: Iterable[Any], record: LoaderRecord | None, saved: State | None) -> Iterator[Any]:
        """Begin a pass over a loader, with the batches in the same order as in an uninterrupted run."""
        if record is None:
            return iter(loader)
        record.begin(loader)
        if saved is not None and saved["own"] is not None and is_stateful(loader):
            return next_pass(loader, saved["own"], self._save(loader))
        if isinstance(loader, DataLoader) and record.had_iterator and not has_iterator(loader):
            self._warn_of_workers(loader, record.trains)
            if not is_wrapper(loader):
                return resumed_iterator(loader, 0, self._save(loader), None, had_iterator=True)
            start_workers(loader, self._save(loader))
        return iter(loader)

    def _restore(self, loader: Any, saved: State | None) -> None:
        """Reset the generators and counters to the beginning of the pass."""
        if self._begun:
            self._randomness.load_state_dict(self._begun)
        if saved is not None:
            _loader_state.put_generators(loader, saved["begun"])
            _loader_state.put_dataset_generators(loader, saved["begun"])
            _loader_state.put_counters(loader, saved["begun"], saved["first"], in_pass=True)

    def _save(self, loader: Any) -> Restore:
        """Save the state of the generators, and return a function that restores it."""
        state, own = self._randomness.state_dict(), _loader_state.read(loader)

        def restore() -> None:
            self._randomness.load_state_dict(state)
            _loader_state.put_generators(loader, own)
            _loader_state.put_dataset_generators(loader, own)

        return restore

    def _warn_of_workers(self, loader: DataLoader[Any], is_inexact: bool) -> None:
        if not loader.num_workers or self._has_warned:
            return
        if not loader.in_order:
            self._has_warned = True
            logger.warning("workers deliver batches in any order (in_order=False): a resumed run may repeat or skip some")
        elif is_inexact and next(seeded_samples_of(loader.dataset), None) is None:
            self._has_warned = True
            cure = "wrap it in hookpoint.SeededSamples" if has_index(loader) else "seed them in its __iter__"
            logger.warning(
                "random numbers that workers draw inside the dataset are not restored; if the dataset draws any, %s", cure
            )


def _facts_in(state: State) -> State:
    """Return the properties of the last training loader that were saved in a checkpoint, such as its dataset and batch size."""
    if state.get("last") is None or "facts" in state:
        return state.get("facts") or {}
    return facts_of_order(state["loaders"][state["last"]].get("order"))


def _cannot_split(loader: Any) -> CannotResume:
    return CannotResume(
        f"{type(loader).__name__} cannot resume in the middle of an epoch with a different batch size: its samples cannot be"
        " split into different batches.",
        give="the batch size of the checkpoint",
        resume="from a checkpoint at the end of an epoch: resume='.../checkpoints/step-...'",
    )


def _begin_pass(loader: Any, epoch: int, *, resumes: bool) -> None:
    sampler = team_sampler_of(loader)
    if sampler is not None and not resumes:
        sampler.begin_pass()
    for samples in seeded_samples_of(getattr(loader, "dataset", None)):
        samples.set_epoch(epoch)
    if isinstance(loader, HookedLoader):
        loader.settings.is_resumed = resumes
