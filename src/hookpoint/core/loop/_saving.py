"""Saving: the checkpoints of one run. What is asked for, when it is written, and what goes into it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.checkpoint.memory_errors import is_out_of_memory, out_of_memory
from hookpoint.core.checkpoint.stateful import gradients_of, has_state, named_buffers, named_parameters, state_of
from hookpoint.core.checkpoint.store import Keep, Request, ResumableStore, Saved, Store
from hookpoint.core.errors import CannotSave, NotFinite, NothingToSaveTo
from hookpoint.core.run.run import stepper_of

if TYPE_CHECKING:
    from hookpoint.core.loop.components import Listens
    from hookpoint.core.loop.run_components import RunComponents
    from hookpoint.core.run.run import Run
    from hookpoint.core.schedule.moment import Moment

logger = logging.getLogger("hookpoint")

FAILURES_IN_A_ROW = 3
WEIGHTS = ("model", "criterion")  # the parts whose parameters are trained


class Saving:
    """Write checkpoints at the boundaries of a run: after a training step, after an epoch, at the end.

    `is_due` is the one thing an iteration looks at. Where there is a saver, a signal, a stop in the middle of an epoch, and
    the end of the run are saved too. A checkpoint that cannot be written does not end the run; the third in a row does, and
    the last one of a run in any case.
    """

    def __init__(self, parts: RunComponents, store: Store | None, signals: Listens, *, agree: Callable[[str], None]) -> None:
        self.announce: Callable[[Saved], None]  # fires on_save
        self.is_due = False
        self.window_is_open = False
        self.passes_done: list[dict[str, Any]] = []
        self.rng_of_body: dict[str, Any] | None = None
        self.finite_buffers: Mapping[str, list[str]] = {}
        self.script_rates: list[float] = []
        self.parts = parts.stateful
        self.store = store
        self.resumable: ResumableStore | None = store if hasattr(store, "open") else None  # type: ignore[assignment]
        self._shared = parts
        self._signals, self._agree = signals, agree
        self._run, self._hooks, self._clocks = parts.run, parts.hooks, parts.clocks
        self._is_in_team = parts.team.size > 1
        _join(store, parts.run)
        self._request = Request()
        self._was_signalled = False
        self._in_flight = 0
        self._failures = 0
        self._is_last_chance = False
        self._has_stopped = False
        self._failure: Exception | None = None
        self._place: dict[str, Any] | None = None
        self._kept_at: tuple[Any, ...] | None = None
        self._last: Any = None
        savers = [entry for entry in self._hooks.entries if getattr(entry.subject, "saves", False)]
        self.savers = [entry.name for entry in savers]
        rules = [rule for entry in self._hooks.entries for rule in getattr(entry.subject, "marks", {}).items()]
        rules += [rule for entry in savers for rule in getattr(entry.subject, "rules", {}).items()]
        self._rules = {tag: keep for tag, keep in dict(rules).items() if keep is not None}
        self._limits = frozenset(tag for entry in savers for tag in getattr(entry.subject, "limits", ()))
        self._marks: dict[str, tuple[Moment, Keep | None, Mapping[str, Any]]] = {}
        self.saves = bool(self.savers) if self.resumable is not None else store is not None

    # Asking

    def refuse_without_store(self) -> None:
        """Say, before anything runs, that a saver has nowhere to save to."""
        if self.savers and self.store is None:
            raise NothingToSaveTo(f"{self.savers[0]} has nowhere to save to.", give='workdir="runs/name"')

    def refuse_if_nowhere(self) -> None:
        if self.store is None:
            raise NothingToSaveTo("there is nothing to save to.", give='workdir="runs/name", or a store')

    def ask(
        self,
        tag: str,
        keep: Keep | None = None,
        in_background: bool = False,
        measured: Mapping[str, Any] | None = None,
    ) -> None:
        self.refuse_if_nowhere()
        self._request.add(tag, keep, in_background, measured)
        self.is_due = True

    def mark(self, tag: str, keep: Keep | None, measured: Mapping[str, Any]) -> None:
        """Give the checkpoint of this moment a tag, if one is written: that is for savers to ask for."""
        self._marks[tag] = (self._clocks.moment, keep, measured)

    def ask_by_signal(self) -> None:
        """Ask from inside a signal's handler: nothing but flags is set."""
        self.is_due = self._was_signalled = True

    def check(self) -> None:
        """Find out before the first step whether what callbacks keep can be read back."""
        if self.saves and self.resumable is not None:
            self.resumable.check({"callbacks": self._hooks.state_dict()})

    def begin(self) -> None:
        """Note which buffers and frozen parameters are finite when the run begins: they must stay so. A mask of -inf is not."""
        not_finite = getattr(self.resumable, "not_finite", None)
        if not_finite is not None:
            with self._shared.may_wait():
                for part in WEIGHTS:
                    frozen = [(name, one) for name, one in named_parameters(self.parts[part]) if not _is_trained(one)]
                    buffers = dict([*named_buffers(self.parts[part]), *frozen])
                    bad = set(not_finite(buffers.items()))
                    self.finite_buffers = {**self.finite_buffers, part: [name for name in buffers if name not in bad]}

    # Boundaries

    def at_boundary(self) -> None:
        """Tell of what the background has finished, and write what was asked for."""
        self._collect()
        if self._was_signalled:
            self._was_signalled = False
            self.ask("manual")
        if self._request.tags:
            self._write()

    def before_end_points(self) -> None:
        """Save where a stop or a signal cuts the run off, before the end points run: there it can be gone on with."""
        stopped_by = self._signals.received
        if self.saves and not self._has_stopped and (stopped_by is not None or self._shared.verdicts.stop):
            try:
                self._collect(wait=True)  # what the background could not write is written here
                if not self._is_kept():
                    self.ask("stop" if stopped_by is None else "signal")
                    self._request.in_background = False
                    self._is_last_chance = True
                    self._write()
            except (CannotSave, NotFinite) as error:
                self._failure = error  # raised at the end, when the end points have run
            self._has_stopped = True

    def at_epoch_end(self) -> None:
        """Save what was asked for in the epoch's end points, or a signal that came in them."""
        if self.saves and self._signals.received is not None and not self._has_stopped and not self._is_kept():
            self.ask("signal")
        if self.is_due:
            self.at_boundary()

    def before_failure(self) -> None:
        """Remember where an exception cut the run off, for those who save even then."""
        if self.saves:
            self._place = self.place()

    def before_restoring(self) -> None:
        """Write the last checkpoint, if there is to be one, now: at on_run_end, the model is about to get other weights."""
        self._collect(wait=True)
        self._ask_for_last()
        if self._request.tags:
            self._request.in_background = False
            self._is_last_chance = True
            self._write()

    def _ask_for_last(self) -> None:
        if self.savers and self.store is not None and not self._has_stopped and not self._is_kept():
            self.ask("end")
            self._place = {"in_epoch": False, "is_end": True}

    def at_end(self, failure: BaseException | None) -> None:
        """Write the last checkpoint, or that of a failure where one was asked for, and wait for what is under way."""
        if failure is None:
            self._agree("the end of the run")
            self._collect(wait=True)  # before it counts as the last chance: what the background could not write is written here
        self._is_last_chance = failure is None
        if failure is not None:
            wanted = {tag: keep for tag, keep in self._request.tags.items() if tag == "exception"}
            self._request.tags = {} if self._is_in_team else wanted
            if wanted and self._is_in_team:
                logger.warning("rank %d does not save after an exception: the other processes are elsewhere", self._run.rank)
        else:
            self._ask_for_last()
        if self._request.tags:
            self._request.in_background = False
            self._write()
        while self._in_flight:
            self._collect(wait=True)
        if self._failure is not None and failure is None:
            raise self._failure

    def close(self) -> None:
        if self.resumable is not None:
            self.resumable.close()

    # Writing

    def state(self) -> dict[str, Any]:
        """Return everything that a run needs to go on as if nothing had happened."""
        shared, run = self._shared, self._run
        parts = {name: state_of(part) for name, part in self.parts.items() if has_state(part)}
        parts["stepper"] = stepper_of(run).state_dict(run)
        if self.window_is_open:
            parts["gradients"] = gradients_of(self.parts["model"])
        is_apart = run.team.has_stages  # what callbacks keep of a model's weights is of each process's own
        of_ranks = [entry.name for entry in self._hooks.entries if is_apart or getattr(entry.subject, "per_rank_state", False)]
        place = self._place or self.place()
        return {
            **({"per_rank": of_ranks} if self._is_in_team else {}),
            "clocks": self._clocks.state_dict(),
            "place": place,
            "parts": parts,
            "rates": run.hyper.rates.state_dict(),
            "finite": {**{part: self._must_be_finite(part) for part in WEIGHTS}, "optimizer": None},
            "finite_buffers": dict(self.finite_buffers),
            "callbacks": self._hooks.state_dict(),
            "logbook": shared.logbook.state_dict(),
            "data": shared.positions.state_dict(place.get("batches")),
            "rng": shared.randomness.state_dict(),
            "script_rates": self.script_rates,
        }

    def _must_be_finite(self, part: str) -> list[str]:
        trained = (name for name, one in named_parameters(self.parts[part]) if _is_trained(one))
        return [*trained, *self.finite_buffers.get(part, ())]

    def place(self) -> dict[str, Any]:
        """Return where in the epoch the run is: between epochs, before its next pass, or so many batches into one."""
        scopes = self._shared.scopes
        if not scopes.epoch_is_open:
            return {"in_epoch": False}
        place: dict[str, Any] = {"in_epoch": True, "rng": self.rng_of_body, "passes": list(map(_plain, self.passes_done))}
        is_in_training = bool(scopes.passes) and scopes.passes[0].is_train
        place["batches"] = scopes.passes[0].batches_done if is_in_training else None
        return place

    def pass_is_done(self, results: Mapping[str, Any], batches: int) -> None:
        """Remember a pass of this epoch: who goes on in a later one leaves it out, and draws the numbers that follow it."""
        self.passes_done.append({"results": results, "batches": batches, "rng": self._rng()})

    def body_begins(self) -> None:
        """Remember where the generators stand before a user's code of an epoch, which is run again by who goes on in it."""
        self.rng_of_body = self._rng()

    def _rng(self) -> dict[str, Any] | None:
        return self._shared.randomness.state_dict() if self.store is not None else None

    def keep_at(self) -> None:
        """Take note that the state of this moment is on disk, or on its way."""
        self._kept_at = self._moment()

    def _is_kept(self) -> bool:
        return self._kept_at == self._moment()

    def _moment(self) -> tuple[Any, ...]:
        clocks = self._clocks
        return (clocks.iteration, clocks.step, clocks.epochs_done)

    def _write(self) -> None:
        self._agree("what is asked for before a checkpoint")  # what is granted later would not be in it
        request, self._request = self._request, Request()
        if self._has_stopped:  # whoever goes on, goes on in the middle of the epoch; what follows is that of a stop
            logger.warning("%s is not saved: the checkpoint of the stop is this run's last", ", ".join(request.tags))
            return
        for tag, (moment, keep, measured) in self._marks.items():
            if moment.is_same(self._clocks.moment):
                request.add(tag, keep, request.in_background, measured)
        self._marks.clear()
        request.rules, request.limits = self._rules, self._limits
        self._run.monitors.settle()
        try:
            with self._shared.may_wait():
                on_all_ranks = getattr(self.store, "on_all_ranks", None)  # that of a team: what fails on one rank fails on all
                saved = self._put(self.state() if on_all_ranks is None else on_all_ranks(self.state), request)
        except Exception as error:
            if self.resumable is None:
                raise
            self._not_saved(error)
        else:
            self.keep_at()
            if saved is None:
                self._in_flight += 1
                self.is_due = True
            else:
                self._tell(saved)

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
                self._in_flight -= 1
                self._not_saved(error)
            else:
                self._in_flight -= len(finished)
                for saved in finished:
                    self._tell(saved)
        self.is_due = bool(self._in_flight)

    def _tell(self, saved: Saved) -> None:
        run = self._run
        self._failures, self._last = 0, saved.path
        took = {"seconds": round(saved.seconds, 3)} if saved.seconds else {}
        run.put_event("save", path=str(saved.path), tags=list(saved.tags), **took)
        self.announce(saved)

    def _not_saved(self, error: BaseException) -> None:
        """Go on without a checkpoint that could not be written, or raise what disk, memory and weights are not at fault for."""
        if isinstance(error, NotFinite):
            self._refused(error)
        elif is_out_of_memory(error):
            self._failed(out_of_memory(error))
        elif isinstance(error, OSError):
            self._failed(error)
        else:
            raise error

    def _refused(self, error: NotFinite) -> None:
        self._kept_at = None
        logger.error("step %d is not saved: %s; the last good checkpoint is %s", self._run.step, error, self._last or "none")
        self._run.put_event("save_refused", reason=str(error))
        if self._is_last_chance and not self._shared.verdicts.stop:  # who stops a run that has diverged knows it
            raise error

    def _failed(self, error: OSError) -> None:
        self._kept_at = None
        self._failures += 1
        logger.error(
            "step %d could not be saved: %s; the last good checkpoint is %s", self._run.step, error, self._last or "none"
        )
        self._run.put_event("save_failed", reason=str(error), in_a_row=self._failures)
        if self._failures >= FAILURES_IN_A_ROW or self._is_last_chance:
            cures = {"last": f"good checkpoint: {self._last or 'none of this run'}"}
            if error.errno == errno.ENOMEM:
                cures["free"] = "memory, or save without async_save=True, which needs a copy, and start again: the run resumes"
            else:
                cures["make"] = "room, or the folder writable, and start again: the run goes on from there"
            raise CannotSave(f"step {self._run.step} could not be saved: {error}", **cures, errno=error.errno) from error


def _join(store: Any, run: Run) -> None:
    """Let a store know the team whose state it keeps, or refuse one that knows of none."""
    if hasattr(store, "join"):
        store.join(run.team)
    elif store is not None and run.team.size > 1:
        raise NothingToSaveTo(
            f"{type(store).__name__} keeps the state of one process, and this run has {run.world_size}.",
            give='workdir="runs/name" instead of store=, or the store a method join(team)',
        )


def _plain(one_pass: Mapping[str, Any]) -> dict[str, Any]:
    results = {name: float(value) for name, value in one_pass["results"].items()}
    return {**one_pass, "results": results}


def _is_trained(parameter: Any) -> bool:
    return bool(getattr(parameter, "requires_grad", True))
