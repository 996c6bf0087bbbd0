"""EpochLoop: the iterator over epoch numbers for the outer `for` loop. It opens and closes each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookpoint.core.loop.machine import Machine


class EpochLoop:
    """Open an epoch, return its number, and close it when the next epoch is requested."""

    __slots__ = ("_machine", "_opened")

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._opened = 0

    def __iter__(self) -> EpochLoop:
        return self

    def __next__(self) -> int:
        machine = self._machine
        run, scopes, verdicts = machine.running(), machine.scopes, machine.verdicts
        if scopes.epoch_is_open:
            scopes.close_epoch(cut_short=False)
        else:
            scopes.close_passes()
            machine.agree("the next epoch")
        while not verdicts.stop and (run.max_epochs is None or machine.resuming.epochs_opened < run.max_epochs):
            machine.begin_epoch()
            machine.resuming.enter_body()
            if not verdicts.stop and not verdicts.stop_epoch:
                self._opened = machine.clocks.epoch
                machine.saving.begin_body()
                machine.resuming.repeat_body()
                return self._opened
            if verdicts.stop:
                machine.saving.note_place(in_body=False)
                machine.saving.before_end_points()
            scopes.close_epoch(cut_short=True)
        self._opened = 0
        machine.resuming.leave_epochs()
        raise StopIteration

    def __del__(self) -> None:
        scopes = self._machine.scopes
        if self._opened and scopes.epoch_is_open and self._machine.clocks.epoch == self._opened:
            scopes.epochs_abandoned = scopes.abandoned = True
