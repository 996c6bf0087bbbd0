"""BatchLoop: the iterator over batches for the inner `for` loop. It calls the methods of `Machine`.

A pass runs a version of `Machine.iterate` without the checks whose result cannot change while the pass is open: which points
have handlers, whether values are logged, whether the optimizer reports its steps, and whether there is a team.
`hooks.explain(step=True)` shows the code of this version.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from hookpoint.core.data.data_points import check_pass
from hookpoint.core.errors import BadArgument, BadLoop, HookpointWarning
from hookpoint.core.hooks.specialize import settled_values, specialize
from hookpoint.core.loop._passes import MODES, Pass
from hookpoint.core.loop.machine import Machine
from hookpoint.core.run.iteration import Iteration
from hookpoint.core.run.run import stepper_of
from hookpoint.core.schedule.clocks import Clocks

if TYPE_CHECKING:
    from hookpoint.core.run.run_loop import Mode

SETTLED = (
    "self.run",
    "self.clocks",
    "self.verdicts",
    "self.scopes",
    "self.scopes.passes",
    "self.logbook",
    "self.saving",
    "self.control",
    "self.agreement",
    "self.pass_end",
    "self.steps.are_reported",
    "self.options.log_every",
    "pass_.now",
    "pass_.is_train",
    "pass_.is_timed",
    "pass_.source",
    "pass_.samples_of",
    "pass_.fetch",
    "pass_.begin",
    "pass_.end",
)
INLINED: dict[str, Callable[..., Any]] = {
    "self.begin_iteration": Machine.begin_iteration,
    "self.end_iteration": Machine.end_iteration,
    "self.clocks.count_step": Clocks.count_step,
    "pass_.now.clear": Iteration.clear,
}


def batches_over(machine: Machine, loader: Iterable[Any], mode: Mode, *, is_side: bool = False) -> BatchLoop:
    """Return the iterator for a new pass. Values logged in a side pass are not added to the run's metrics and records."""
    if mode not in MODES:
        raise BadArgument(f"run.batches: unknown mode {mode!r}.", choose=", ".join(map(repr, MODES)))
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise BadArgument(f"run.batches: expected an iterable such as a loader or a list, got {loader!r}.")
    machine.scopes.settle()
    warns_idle = mode == "train" and machine.running().is_chief
    check_pass(machine.hooks, loader, warns_idle=warns_idle, saved=machine.saving.stateful if machine.saving.saves else None)
    return BatchLoop(machine, Pass(loader, mode, is_side=is_side))


class BatchLoop:
    """Iterate over the batches of a pass. If the user's loop exits with `break`, the next `run.*` call closes the pass.

    A generator with a `finally` would close the pass immediately, but Python would discard errors from callbacks.
    """

    __slots__ = ("_epoch", "_iterator", "_machine", "_scopes", "pass_")

    def __init__(self, machine: Machine, pass_: Pass) -> None:
        self.pass_ = pass_
        self._machine, self._scopes = machine, machine.scopes
        self._iterator: Iterator[Any] | None = None
        self._epoch: int | None = None  # the epoch of the first `for` loop

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator that keeps a reference to this object. Raise BadLoop if the pass has ended in an earlier epoch.

        A `for` loop runs faster over this iterator than over an object with a `__next__` method written in Python.
        """
        epoch = self._machine.clocks.epoch
        if self._epoch is None:
            self._epoch = epoch
        elif self.pass_.is_done and self._epoch != epoch and self._scopes.epoch_is_open:
            raise BadLoop(
                f"this {self.pass_.mode} pass has ended in epoch {self._epoch}, so epoch {epoch} would get no batches.",
                call="run.batches(...) in every epoch, as in: for batch in run.batches(loader)",
            )
        return chain.from_iterable(self._drive(self._machine, self.pass_, keeps=self))

    def __next__(self) -> Any:
        """End the current iteration, begin the next one, and return its batch."""
        if self._iterator is None:
            self._iterator = chain.from_iterable(self._drive(self._machine, self.pass_))
        try:
            return next(self._iterator)
        except BaseException:
            self._iterator = None
            raise

    @staticmethod
    def _drive(machine: Machine, pass_: Pass, keeps: object = None) -> Iterator[Iterable[Any]]:
        """Open the pass and yield a generator over its batches. If handlers change during the pass, yield a new generator.

        An exception ends the generator too. If the caller catches it and asks for the next batch, the pass continues. It ends,
        as incomplete, if the exception has ended a generator that yields the batches.

        At the end of the pass, step the optimizer if the last accumulation window is incomplete. With `yield from`, Python
        would enter this function for every batch.
        """
        while pass_.is_open or machine.begin_pass(pass_):  # a finished pass does not open again
            resolutions = pass_.resolutions
            yield iterations(machine, pass_)
            complete = pass_.is_exhausted
            if complete and pass_.why_empty is not None and not pass_.batches_seen:
                warnings.warn(f"this {pass_.mode} pass has no batches: {pass_.why_empty}.", HookpointWarning, stacklevel=2)
            is_cut = pass_.has_lost_data or machine.pass_end.is_due(pass_)
            has_ended = complete or (pass_.resolutions == resolutions and is_cut)
            if pass_.is_open and has_ended:  # otherwise, continue with the changed handlers, or after a caught exception
                pass_.was_cut = not complete and not pass_.is_at_end
                if not complete and not pass_.was_cut:  # the pass was stopped at its last batch
                    machine.resuming.exhaust_data(pass_)
                if pass_.is_train and (complete or not machine.verdicts.stop):
                    stepper_of(machine.run).finish(machine.run)
                machine.end_pass(pass_, complete=not pass_.was_cut)
            elif not pass_.in_iteration:
                pass_.forget_iteration()
        if pass_.was_superseded and not machine.verdicts.stop:
            raise BadLoop(
                f"this {pass_.mode} pass was closed by another pass or by the end of its epoch, so it has no further batches.",
                call="run.batches(...) in every epoch, for one loader at a time, as in: zip(run.batches(first), second)",
            )

    def close(self) -> None:
        """End the pass here, as a `break` does."""
        self._machine.end_pass(self.pass_, complete=False)

    def abort(self) -> None:
        """Drop the pass after an exception, without firing its end points. The caller may catch the exception."""
        pass_, machine = self.pass_, self._machine
        if pass_.is_open and not pass_.is_closing and self._scopes.passes[-1] is pass_:
            self._scopes.drop_pass(pass_)
            machine.logbook.drop_page()
            self._scopes.passes.pop()
            pass_.leave(machine.run)

    @property
    def results(self) -> dict[str, Any]:
        """The means of the values logged in the pass, by name. Empty until the pass has ended."""
        return self.pass_.results

    def __len__(self) -> int:
        return len(self.pass_.loader)  # type: ignore[arg-type]

    def __del__(self) -> None:
        if self.pass_.is_open:
            self.pass_.abandoned = self._scopes.abandoned = True
            self._machine.logbook.pause_recent()
            self._scopes.cleanup.leave(self.pass_, has_failed=True)


def iterations(machine: Machine, pass_: Pass) -> Iterator[Any]:
    """Return a generator over the iterations of an open pass. See `Machine.iterate`."""
    settled = settled_values(SETTLED, self=machine, pass_=pass_)
    plan = specialize(Machine.iterate, settled, INLINED)
    machine.hooks.sources[f"The iterations of a {pass_.mode} pass"] = plan.source
    result: Iterator[Any] = plan.bound(settled)(machine, pass_)
    return result


def iteration_ends(machine: Machine, pass_: Pass) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return `Machine.begin_iteration` and `Machine.end_iteration`, specialized for an open pass that a host drives."""
    settled = settled_values(SETTLED, self=machine, pass_=pass_)
    plans = [specialize(function, settled, INLINED) for function in (Machine.begin_iteration, Machine.end_iteration)]
    for name, plan in zip(("beginning", "end"), plans, strict=True):
        machine.hooks.sources[f"The {name} of an iteration in a {pass_.mode} pass"] = plan.source
    begin, end = (plan.bound(settled) for plan in plans)
    return begin, end
