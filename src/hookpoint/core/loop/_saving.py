"""Saving: when a run's checkpoints are written, and what they contain."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.checkpoint.memory_errors import is_out_of_memory, out_of_memory
from hookpoint.core.checkpoint.stateful import gradients_of, has_state, named_buffers, named_parameters, sparse_in, state_of
from hookpoint.core.checkpoint.store import Keep, Request, ResumableStore, Saved, Store
from hookpoint.core.data.list_digest import list_digest
from hookpoint.core.errors import CannotSave, NotFinite, NothingToSaveTo
from hookpoint.core.hooks.request_details import info_for, links_for, rules_for
from hookpoint.core.logger import logger
from hookpoint.core.run.run import stepper_of

if TYPE_CHECKING:
    from hookpoint.core.control.control import Control
    from hookpoint.core.loop._run_objects import RunObjects
    from hookpoint.core.loop._signals import Signals
    from hookpoint.core.run.run import Run
    from hookpoint.core.schedule.moment import Moment

FAILURES_IN_A_ROW = 3
WEIGHTS = ("model", "criterion")  # the objects with trainable parameters


class Saving:
    """Write checkpoints at the boundaries of a run: after a training step, after an epoch, and at the end.

    After an iteration, the loop calls `at_boundary` only if the flag `is_due` is set. If a callback saves checkpoints, the run
    is also saved on a signal, on a stop in the middle of an epoch, and at the end. If a checkpoint cannot be written, the run
    continues. It ends after three failures in a row, or if its last checkpoint cannot be written.
    """

    def __init__(self, objects: RunObjects, store: Store | None, signals: Signals, *, agree: Callable[[str], None]) -> None:
        self.announce: Callable[[Saved], None]  # fires on_save
        self.control: Control
        self.is_due = self.is_accumulating = self._was_signalled = self._is_last_chance = self.has_stopped = False
        self.passes_done: list[dict[str, Any]] = []
        self.rng_of_body: dict[str, Any] | None = None
        self.finite_buffers: Mapping[str, list[str]] = {}
        self.script_rates: list[float] = []
        self.stateful = objects.stateful
        self.store = store
        self.resumable: ResumableStore | None = store if hasattr(store, "open") else None  # type: ignore[assignment]
        self._objects, self._signals, self._agree = objects, signals, agree
        self._run, self._hooks, self._clocks = objects.run, objects.hooks, objects.clocks
        self.is_resumed_later = False  # whether the script resumes from this run's newest checkpoint when it starts again
        self._is_in_team = objects.team.size > 1
        _join(store, objects.run)
        self._polls = not hasattr(store, "when_saved")  # a store with `when_saved` calls `wake` after a background save
        if not self._polls:
            store.when_saved = self.wake  # type: ignore[union-attr]
        self._request = Request()
        self._in_flight = self._step_in_flight = self._failures = 0
        self._failure: Exception | None = None
        self._place: dict[str, Any] | None = None
        self._saved_at: tuple[Any, ...] | None = None
        self._last: Any = None
        self._newest: Any = None
        self._problem: BaseException | None = None
        savers = [entry for entry in self._hooks.entries if getattr(entry.subject, "saves", False)]
        self.savers = [entry.name for entry in savers]
        self._limits = frozenset(tag for entry in savers for tag in getattr(entry.subject, "limits", ()))
        self._marks: dict[str, tuple[Moment, Keep | None, Mapping[str, Any]]] = {}
        self.saves = bool(self.savers) if self.resumable is not None else store is not None

    # Requests

    def check_store(self) -> None:
        """Raise NothingToSaveTo if a saver has no store. Called before the run begins."""
        if self.savers and self.store is None:
            raise NothingToSaveTo(f"{self.savers[0]} has nowhere to save to.", give='workdir="runs/name"')

    def require_store(self) -> None:
        if self.store is None:
            raise NothingToSaveTo("run.save() has nowhere to save to.", give='workdir="runs/name", or a store')

    @property
    def newest(self) -> str | None:
        """The name of the newest checkpoint that this run wrote, or None if the script would not resume from it."""
        return os.path.basename(self._last) if self.is_resumed_later and self._last is not None else None

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written in the background, or its result has not been handled yet."""
        return self._in_flight > 0

    def request(
        self, tag: str, keep: Keep | None = None, in_background: bool = False, measured: Mapping[str, Any] | None = None
    ) -> None:
        self.require_store()
        self._request.add(tag, keep, in_background, measured)
        self.is_due = True

    def mark(self, tag: str, keep: Keep | None, measured: Mapping[str, Any]) -> None:
        """If a checkpoint is written at the current moment, give it this tag too. This does not request a checkpoint."""
        self._marks[tag] = (self._clocks.moment, keep, measured)

    def wake(self) -> None:
        """Set `is_due`, because a background save has finished, or because a callback has failed in the background."""
        self.is_due = True

    def request_by_signal(self) -> None:
        """Request a checkpoint from a signal handler. This only sets flags."""
        self.is_due = self._was_signalled = True

    def check(self) -> None:
        """Check that the callbacks' state and sparse buffers can be saved and loaded. Called before the first step."""
        self._run.monitors.settle_calls()
        if self.saves and self.resumable is not None:
            self.resumable.check({"callbacks": self._hooks.state_dict(), "parts": sparse_in(self.stateful)})

    def begin(self) -> None:
        """Record which buffers and frozen parameters are finite when the run begins. They must stay finite."""
        not_finite = getattr(self.resumable, "not_finite", None)
        if not_finite is not None:
            with self._objects.may_wait():
                for name in WEIGHTS:
                    model = self.stateful[name]
                    frozen = [item for item in named_parameters(model) if not _is_trained(item[1])]
                    buffers = dict([*named_buffers(model), *frozen])
                    bad = set(not_finite(buffers.items()))
                    self.finite_buffers = {**self.finite_buffers, name: [key for key in buffers if key not in bad]}

    # Boundaries

    def at_boundary(self) -> None:
        """Report finished background saves, and write the requested checkpoint."""
        self.is_due = False  # cleared first, because a signal may set it at any moment
        self._run.monitors.raise_errors()
        self._collect()
        if self._was_signalled:
            self._was_signalled = False
            self.request("manual")
        if self._request.tags:
            self._write()

    def save_now(self, tag: str) -> tuple[Any, str]:
        """Write a checkpoint at this boundary. Return `(path, "")`, or `(None, reason)` if this fails.

        If this is the only checkpoint to write at this boundary, a failure raises no error and does not count as a failed save.
        """
        is_alone, failures = not self._request.tags, self._failures
        self.request(tag)
        self._problem = None
        try:
            self.at_boundary()
        except CannotSave as error:
            if not is_alone:
                raise
            self._problem = error
        if self._newest is None and is_alone:
            self._failures = failures
        return self._newest, "" if self._newest is not None else str(self._problem or "it was not written")

    def before_end_points(self) -> None:
        """If a stop or a signal ends the run early, save before points such as on_epoch_end fire. The run can then resume."""
        stopped_by = self._signals.received
        if self.saves and not self.has_stopped and (stopped_by is not None or self._objects.verdicts.stop):
            try:
                self.wait()  # if a background save has failed, save again here
                if not self._is_saved():
                    self.request("stop" if stopped_by is None else "signal")
                    self._write_last()
            except (CannotSave, NotFinite) as error:
                self._failure = error  # at_end raises this error
            self.has_stopped = True

    def at_epoch_end(self) -> None:
        """Write the checkpoint that a callback or a signal requested at the end of the epoch."""
        if self.saves and self._signals.received is not None and not self.has_stopped and not self._is_saved():
            self.request("signal")
        if self.is_due:
            self.at_boundary()

    def note_place(self, **details: bool) -> None:
        """Record the position at which a stop or an exception ends the run, for a checkpoint that is written later."""
        if self.saves:
            self._place = {**self.place(), **details}

    def before_restoring(self) -> None:
        """Write the last checkpoint now, if it is due.

        Called at on_run_end, before a callback loads other weights into the model.
        """
        self.wait()
        self._request_last()
        if self._request.tags:
            self._write_last()

    def _write_last(self) -> None:
        self._request.in_background, self._is_last_chance = False, True
        self._write()

    def _request_last(self) -> None:
        if self.savers and self.store is not None and not self.has_stopped and not self._is_saved():
            self.request("end")
            self._place = {"in_epoch": False, "is_end": True}

    def at_end(self, failure: BaseException | None) -> None:
        """Write the last checkpoint (after an exception, only one with the tag "exception"). Wait for background saves."""
        if failure is None:
            self._agree("the end of the run")
            self.wait()  # if a background save has failed, the last checkpoint replaces it
        self._is_last_chance = failure is None
        if failure is not None:
            wanted = {tag: keep for tag, keep in self._request.tags.items() if tag == "exception"}
            self._request.tags = {} if self._is_in_team else wanted
            if wanted and self._is_in_team:
                logger.warning("rank %d does not save after an exception: other ranks are not at the same step", self._run.rank)
        else:
            self._request_last()
        if self._request.tags:
            self._request.in_background = False
            self._write()
        self.wait()
        if self._failure is not None and failure is None:
            raise self._failure

    def wait(self) -> None:
        """Wait for the background save, if there is one. Then fire on_save, or handle the failure."""
        self._collect(wait=True)

    def close(self) -> None:
        if self.resumable is not None:
            self.resumable.close()

    # Writing

    def state(self) -> dict[str, Any]:
        """Return the state that a run needs to resume exactly."""
        objects, run = self._objects, self._run
        parts = {name: state_of(item) for name, item in self.stateful.items() if has_state(item)}
        parts["stepper"] = stepper_of(run).state_dict(run)
        if self.is_accumulating:
            parts["gradients"] = gradients_of(self.stateful["model"])
        is_split = run.team.has_stages  # with pipeline stages, callbacks store each rank's weights
        per_rank = [entry.name for entry in self._hooks.entries if is_split or getattr(entry.subject, "per_rank_state", False)]
        place = self._place or self.place()
        logbook = objects.logbook.state_dict()  # this delivers values to callbacks, so it comes before their state_dict()
        return {
            **({"per_rank": per_rank} if self._is_in_team else {}),
            "clocks": self._clocks.state_dict(),
            "place": place,
            "parts": parts,
            "rates": run.hyper.rates.state_dict(),
            "finite": {**{name: self._must_be_finite(name) for name in WEIGHTS}, "optimizer": None},
            "finite_buffers": dict(self.finite_buffers),
            "callbacks": self._hooks.state_dict(),
            "logbook": logbook,
            "data": objects.positions.state_dict(place.get("batches")),
            "rng": objects.randomness.state_dict(),
            "script_rates": self.script_rates,
            **({"control": control} if (control := self.control.state_dict()) else {}),
        }

    def _must_be_finite(self, name: str) -> list[str]:
        trained = (key for key, parameter in named_parameters(self.stateful[name]) if _is_trained(parameter))
        return [*trained, *self.finite_buffers.get(name, ())]

    def place(self) -> dict[str, Any]:
        """Return the run's position: between epochs, before an epoch's next pass, or after a number of batches in a pass."""
        scopes = self._objects.scopes
        if not scopes.epoch_is_open:
            return {"in_epoch": False}
        place: dict[str, Any] = {"in_epoch": True, "rng": self.rng_of_body, "passes": list(map(_plain, self.passes_done))}
        is_in_training = bool(scopes.passes) and scopes.passes[0].is_train
        place["batches"] = scopes.passes[0].batches_done if is_in_training else None
        items = list_digest(scopes.passes[0].loader, place["batches"]) if is_in_training else None
        return {**place, "stops_epoch": self._objects.verdicts.stop_epoch, "items": items}

    def add_pass(self, results: Mapping[str, Any], batches: int, *, is_cut: bool) -> None:
        """Record a finished pass of this epoch. A resumed run skips it and only restores the random generators."""
        self.passes_done.append({"results": results, "batches": batches, "rng": self._rng(), "is_cut": is_cut})

    def begin_body(self) -> None:
        """Record the random generators' state before the user's code in an epoch runs. A resumed run repeats this code."""
        self.rng_of_body = self._rng()

    def _rng(self) -> dict[str, Any] | None:
        return self._objects.randomness.state_dict() if self.store is not None else None

    def mark_saved(self) -> None:
        """Record that the current state is saved or being written."""
        self._saved_at = self._moment()

    def _is_saved(self) -> bool:
        return self._saved_at == self._moment()

    def _moment(self) -> tuple[Any, ...]:
        clocks = self._clocks
        return (clocks.iteration, clocks.step, clocks.epochs_done)

    def _write(self) -> None:
        self.wait()  # on_save handlers for the save in progress may request more saves
        self._agree("the requests before a checkpoint")  # the checkpoint must include the requests of all ranks
        request, self._request, self._newest = self._request, Request(), None
        if self.has_stopped:  # the run must resume where it stopped: a later checkpoint would skip batches
            logger.warning("not saving (%s): the run wrote its last checkpoint when it stopped", ", ".join(request.tags))
            return
        for tag, (moment, keep, measured) in self._marks.items():
            if moment.is_same(self._clocks.moment):
                request.add(tag, keep, request.in_background, measured)
        self._marks.clear()
        request.rules, request.limits = rules_for(self._hooks), self._limits
        request.info, request.links = info_for(self._hooks, self._run), links_for(self._hooks, self._run, request.tags)
        self._run.monitors.settle()
        try:
            with self._objects.may_wait():
                on_all_ranks = getattr(self.store, "on_all_ranks", None)  # if one rank fails to save, all ranks fail
                saved = self._put(self.state() if on_all_ranks is None else on_all_ranks(self.state), request)
        except Exception as error:
            if self.resumable is None:
                raise
            self._handle_failure(error, self._clocks.step)
        else:
            self.mark_saved()
            if saved is None:
                self._in_flight, self._step_in_flight = 1, self._clocks.step
                if self._polls:
                    self.is_due = True
            else:
                self._report(saved)

    def _put(self, state: dict[str, Any], request: Request) -> Saved | None:
        clocks = self._clocks
        if self.resumable is not None:
            return self.resumable.write(state, step=clocks.step, elapsed=clocks.elapsed(), request=request)
        assert self.store is not None
        tags = list(request.tags)
        return Saved(self.store.save(state, step=clocks.step, tags=tags), clocks.step, tags)

    def _collect(self, *, wait: bool = False) -> None:
        if self.resumable is not None and self._in_flight:
            try:
                finished = self.resumable.collect(wait=wait)
            except BaseException as error:
                self._in_flight = 0
                self._handle_failure(error, self._step_in_flight)
            else:
                self._in_flight -= len(finished)
                for saved in finished:
                    self._report(saved)
        if (self._in_flight and self._polls) or self.control.has_work:
            self.is_due = True

    def _report(self, saved: Saved) -> None:
        run = self._run
        self._failures, self._last, self._newest = 0, saved.path, saved.path
        seconds = {"seconds": round(saved.seconds, 3)} if saved.seconds else {}
        run.put_event("save", path=str(saved.path), tags=list(saved.tags), **seconds)
        self.announce(saved)

    def _handle_failure(self, error: BaseException, step: int) -> None:
        """Handle a failed save: log it, and raise an error only if the run must not continue without the checkpoint."""
        last = self._last or "none"
        self._saved_at, self._problem = None, error
        if isinstance(error, NotFinite):
            logger.error("step %d was not saved: %s; the last good checkpoint is %s", step, error, last)
            self._run.put_event("save_refused", reason=str(error))
            if self._is_last_chance and not self._objects.verdicts.stop:  # after a stop, the logged error is enough
                raise error
            return
        if is_out_of_memory(error):
            error = out_of_memory(error)
        elif not isinstance(error, OSError):
            raise error
        self._failures += 1
        logger.error("step %d could not be saved: %s; the last good checkpoint is %s", step, error, last)
        self._run.put_event("save_failed", reason=str(error), in_a_row=self._failures)
        if self._failures >= FAILURES_IN_A_ROW or self._is_last_chance:
            cures = {"last": f"good checkpoint: {self._last or 'none from this run'}"}
            if error.errno == errno.ENOMEM:
                cures["free"] = "memory, or pass async_save=False so that the saver needs no copy; then start again to resume"
            else:
                cures["free"] = "disk space, or make the folder writable; then start again to resume"
            raise CannotSave(f"step {step} could not be saved: {error}", **cures, errno=error.errno) from error


def _join(store: Any, run: Run) -> None:
    """Pass the team to a store. Raise NothingToSaveTo if the store supports only one rank."""
    if hasattr(store, "join"):
        store.join(run.team)
    elif store is not None and run.team.size > 1:
        raise NothingToSaveTo(
            f"{type(store).__name__} stores the state of one rank; this run has {run.world_size}.",
            give='workdir="runs/name" instead of store=, or add a method join(team) to the store',
        )


def _plain(done: Mapping[str, Any]) -> dict[str, Any]:
    return {**done, "results": {name: float(value) for name, value in done["results"].items()}}


def _is_trained(parameter: Any) -> bool:
    return bool(getattr(parameter, "requires_grad", True))
