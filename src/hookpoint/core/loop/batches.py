"""BatchLoop: the iterator over batches that a user's inner `for` gets. It drives the machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from hookpoint.core.data.data_points import check_pass
from hookpoint.core.errors import BadArgument
from hookpoint.core.loop.passes import END, MODES, Pass
from hookpoint.core.run.run import stepper_of

if TYPE_CHECKING:
    from hookpoint.core.loop.machine import Machine
    from hookpoint.core.run.run_loop import Mode


def batches_over(machine: Machine, loader: Iterable[Any], mode: Mode, *, is_side: bool = False) -> BatchLoop:
    """Return the iterator of a new pass; what a pass aside logs stays out of the run's metrics and records."""
    if mode not in MODES:
        raise BadArgument(f"there is no mode {mode!r}.", choose=", ".join(map(repr, MODES)))
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise BadArgument(f"run.batches() takes something to iterate over, not {loader!r}.", give="a loader or a list")
    machine.scopes.settle()
    says_idle = mode == "train" and machine.running().is_chief
    check_pass(machine.hooks, loader, says_idle=says_idle, kept=machine.saving.parts if machine.saving.saves else None)
    return BatchLoop(machine, Pass(loader, mode, is_side=is_side))


class BatchLoop:
    """What a user's `for` runs over. When a `break` lets go of it, its pass is marked and closed by the next `run.*` call.

    A generator with a `finally` would close at once, but an error in a callback would then be lost.
    """

    __slots__ = ("_machine", "_scopes", "_verdicts", "one")

    def __init__(self, machine: Machine, one: Pass) -> None:
        self.one = one
        self._machine, self._scopes, self._verdicts = machine, machine.scopes, machine.verdicts

    def __iter__(self) -> BatchLoop:
        return self

    def __next__(self) -> Any:
        """End the iteration that is running, begin the next one, and return its batch."""
        machine, one, verdicts, scopes = self._machine, self.one, self._verdicts, self._scopes
        if not one.is_open and not machine.begin_pass(one):
            raise StopIteration
        if scopes.passes[-1] is not one:
            scopes.close_above(one)
        if one.in_iteration:
            machine.end_iteration(one)
        while not (verdicts.has_requests and machine.must_end(one)):
            batch = one.again
            if batch is END:
                batch = next(one.source, END) if one.fetch is None else machine.fetch(one)
                if batch is END:
                    self._end(complete=True)
                one.batches_seen += 1
            if verdicts.has_requests and machine.must_end(one, has_batch=True):  # requested during the fetch
                one.batches_seen -= one.again is END
                break
            if machine.begin_iteration(one, batch):
                return one.now.batch
        self._end(complete=False)

    def _end(self, *, complete: bool) -> NoReturn:
        """End a pass that has no further batch, with the step of a last short window where one is left."""
        run, one = self._machine.run, self.one
        if one.is_train and (complete or not self._verdicts.stop):
            stepper_of(run).finish(run)
        one.was_cut = not complete and not one.saw_everything
        self._machine.end_pass(one, complete=not one.was_cut)
        raise StopIteration

    def close(self) -> None:
        """End the pass here, as a `break` would."""
        self._machine.end_pass(self.one, complete=False)

    def abort(self) -> None:
        """Drop the pass without its end points: an exception came out of it, and someone may catch it."""
        one, machine = self.one, self._machine
        if one.is_open and not one.is_closing and self._scopes.passes[-1] is one:
            self._scopes.drop_pass(one)
            machine.logbook.drop_page()
            self._scopes.passes.pop()
            one.leave(machine.run)

    @property
    def results(self) -> dict[str, Any]:
        """What the pass has logged, once it is over: the means over it, by name."""
        return self.one.results

    def __len__(self) -> int:
        return len(self.one.loader)  # type: ignore[arg-type]

    def __del__(self) -> None:
        if self.one.is_open:
            self.one.abandoned = self._scopes.abandoned = True
            self._scopes.cleanup.leave(self.one, has_failed=True)
