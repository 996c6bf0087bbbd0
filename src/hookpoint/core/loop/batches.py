"""BatchLoop: the iterator over batches for the inner `for`. It drives the machine."""

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
    """Return the iterator of a new pass. Values logged in a side pass stay out of the run's metrics and records."""
    if mode not in MODES:
        raise BadArgument(f"run.batches: unknown mode {mode!r}.", choose=", ".join(map(repr, MODES)))
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise BadArgument(f"run.batches: expected an iterable such as a loader or a list, got {loader!r}.")
    machine.scopes.settle()
    warns_idle = mode == "train" and machine.running().is_chief
    check_pass(machine.hooks, loader, warns_idle=warns_idle, saved=machine.saving.stateful if machine.saving.saves else None)
    return BatchLoop(machine, Pass(loader, mode, is_side=is_side))


class BatchLoop:
    """Iterate over the batches of a pass. If a `break` drops the iterator, the next `run.*` call closes the pass.

    A generator with a `finally` would close it at once, but would lose an error in a callback.
    """

    __slots__ = ("_machine", "_scopes", "_verdicts", "pass_")

    def __init__(self, machine: Machine, pass_: Pass) -> None:
        self.pass_ = pass_
        self._machine, self._scopes, self._verdicts = machine, machine.scopes, machine.verdicts

    def __iter__(self) -> BatchLoop:
        return self

    def __next__(self) -> Any:
        """End the running iteration, begin the next one, and return its batch."""
        machine, pass_, verdicts, scopes = self._machine, self.pass_, self._verdicts, self._scopes
        if not pass_.is_open and not machine.begin_pass(pass_):
            raise StopIteration
        if scopes.passes[-1] is not pass_:
            scopes.close_above(pass_)
        if pass_.in_iteration:
            machine.end_iteration(pass_)
        while not (verdicts.has_requests and machine.must_end(pass_)):
            batch = pass_.again
            if batch is END:
                batch = next(pass_.source, END) if pass_.fetch is None else machine.fetch(pass_)
                if batch is END:
                    self._end(complete=True)
                pass_.batches_seen += 1
            if verdicts.has_requests and machine.must_end(pass_, has_batch=True):  # requested during the fetch
                pass_.batches_seen -= pass_.again is END
                break
            if machine.begin_iteration(pass_, batch):
                return pass_.now.batch
        self._end(complete=False)

    def _end(self, *, complete: bool) -> NoReturn:
        """End a pass without further batches; step first if the last accumulation window is incomplete."""
        run, pass_ = self._machine.run, self.pass_
        if pass_.is_train and (complete or not self._verdicts.stop):
            stepper_of(run).finish(run)
        pass_.was_cut = not complete and not pass_.saw_everything
        self._machine.end_pass(pass_, complete=not pass_.was_cut)
        raise StopIteration

    def close(self) -> None:
        """End the pass here, like a `break`."""
        self._machine.end_pass(self.pass_, complete=False)

    def abort(self) -> None:
        """Drop the pass without its end points after an exception, which the caller may catch."""
        pass_, machine = self.pass_, self._machine
        if pass_.is_open and not pass_.is_closing and self._scopes.passes[-1] is pass_:
            self._scopes.drop_pass(pass_)
            machine.logbook.drop_page()
            self._scopes.passes.pop()
            pass_.leave(machine.run)

    @property
    def results(self) -> dict[str, Any]:
        """The means of the values logged in the pass, by name, once it is over."""
        return self.pass_.results

    def __len__(self) -> int:
        return len(self.pass_.loader)  # type: ignore[arg-type]

    def __del__(self) -> None:
        if self.pass_.is_open:
            self.pass_.abandoned = self._scopes.abandoned = True
            self._machine.logbook.pause_recent()
            self._scopes.cleanup.leave(self.pass_, has_failed=True)
