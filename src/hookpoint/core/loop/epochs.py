"""Epochs: the iterator over epoch numbers that a user's outer `for` gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookpoint.core.loop.loop import Loop


class Epochs:
    """Open an epoch, hand out its number, and close it when the next one is asked for."""

    __slots__ = ("_loop", "_opened", "_run")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._run = loop.running()
        self._opened = 0

    def __iter__(self) -> Epochs:
        return self

    def __next__(self) -> int:
        loop = self._loop
        run = loop.running()
        if loop.epoch_is_open:
            loop.close_open_epoch(cut_short=False)
        else:
            loop.close_passes()
            loop.agree_now("the next epoch")
        while not run._verdicts.stop and (run.max_epochs is None or loop.epochs_opened < run.max_epochs):
            loop.open_epoch()
            if not run._verdicts.stop and not run._verdicts.stop_epoch:
                self._opened = loop.clocks.epoch
                loop.saving.body_begins()
                loop.resuming.repeat_body()
                return self._opened
            loop.saving.before_end_points()
            loop.close_open_epoch(cut_short=True)
        self._opened = 0
        loop.resuming.leave_epochs()
        raise StopIteration

    def __del__(self) -> None:
        if self._opened and self._loop.is_in_epoch(self._run, self._opened):
            self._loop.epochs_abandoned = self._loop.abandoned = True
