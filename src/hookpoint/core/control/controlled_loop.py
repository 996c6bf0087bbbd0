"""ControlledLoop: the part of a loop that live control reads and changes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hookpoint.core.checkpoint.positions import Positions
    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.log.logbook import Logbook
    from hookpoint.core.run.run import Run
    from hookpoint.core.run.verdicts import Verdicts
    from hookpoint.core.schedule.clocks import Clocks


class RunParts(Protocol):
    """The parts of a run that live control reads or changes."""

    run: Run
    hooks: Hooks
    clocks: Clocks
    logbook: Logbook
    verdicts: Verdicts
    positions: Positions


class Saves(Protocol):
    """The component that saves checkpoints. Each iteration checks `is_due`."""

    is_due: bool

    def request(self, tag: str) -> Any: ...

    def save_now(self, tag: str) -> tuple[Any, str]: ...

    def require_store(self) -> Any: ...

    def at_boundary(self) -> Any: ...


class Resumes(Protocol):
    """The component that resumes from checkpoints."""

    @property
    def has_resumed(self) -> bool: ...

    @property
    def has_other_data(self) -> bool: ...

    @property
    def moved(self) -> Mapping[str, int] | None: ...


class CatchesSignals(Protocol):
    """The component that handles signals."""

    @property
    def caught(self) -> signal.Signals | None: ...

    @property
    def received(self) -> signal.Signals | None: ...

    def take(self, number: signal.Signals) -> Any: ...


class Agrees(Protocol):
    """The component through which ranks agree on requests."""

    def request_control(self) -> None: ...

    def take_save_signal(self) -> bool: ...

    def gather(self, value: Any, what: str, *, counts: bool = True) -> list[Any]: ...


class HostLimits(Protocol):
    """The trainer from another library that drives the loop.

    `cannot` maps each command that the trainer does not support to the reason.
    """

    @property
    def name(self) -> str: ...

    @property
    def cannot(self) -> Mapping[str, str]: ...


class ControlledLoop:
    """The part of a loop that live control uses.

    Live control calls these methods to apply commands, and to make all ranks apply a command at the same step.
    """

    def __init__(
        self,
        objects: RunParts,
        saving: Saves,
        resuming: Resumes,
        signals: CatchesSignals,
        agreement: Agrees | None,
        host: HostLimits | None,
    ) -> None:
        self.run, self.hooks, self.clocks = objects.run, objects.hooks, objects.clocks
        self.host = host
        self._logbook = objects.logbook
        self._objects, self._saving, self._resuming, self._signals = objects, saving, resuming, signals
        self._agreement = agreement

    @property
    def has_resumed(self) -> bool:
        """Whether the run started from a checkpoint."""
        return self._resuming.has_resumed

    @property
    def counts_differ(self) -> bool:
        """Whether the run resumed with different data or a different number of ranks, which changes its iteration numbers."""
        return self._resuming.moved is not None or self._resuming.has_other_data or bool(self._objects.positions.notes)

    @property
    def is_in_team(self) -> bool:
        return self._agreement is not None

    @property
    def is_stopping(self) -> bool:
        """Whether a stop request is in effect on all ranks."""
        return self._objects.verdicts.stop

    def wake(self) -> None:
        """Make all ranks apply live-control commands at the same boundary, as soon as possible.

        Any thread on the chief may call this method.
        """
        if self._agreement is None:
            self._saving.is_due = True
        else:
            self._agreement.request_control()

    def wake_here(self) -> None:
        """Make this rank apply live-control commands at the next boundary.

        All ranks must call this method at the same step.
        """
        self._saving.is_due = True

    def gather(self, value: Any, what: str) -> list[Any]:
        """Return the values of all ranks, in rank order. The team does not count this call as a collective call."""
        return [value] if self._agreement is None else self._agreement.gather(value, what, counts=False)

    @property
    def log_every(self) -> int:
        return self._logbook.log_every

    def set_log_every(self, steps: int, *, moves_next: bool = True) -> Callable[[], None]:
        """Set the number of steps between log steps. With `moves_next`, also reschedule the next log step.

        Return a function that restores the old number of steps and the old next log step.
        """
        logbook = self._logbook
        was, next_step = logbook.log_every, logbook.next_log_step
        logbook.set_log_every(steps, moves_next=moves_next)

        def restore() -> None:
            logbook.set_log_every(was, moves_next=False)
            logbook.next_log_step = next_step

        return restore

    def save(self, tag: str) -> tuple[Any, str]:
        """Write a checkpoint now. Return its path and "". If the checkpoint was not written, return None and the reason."""
        return self._saving.save_now(tag)

    def check_save(self) -> None:
        """Raise an error if the run has no checkpoint store."""
        self._saving.require_store()

    def pause(self) -> None:
        """Stop the run's clocks, so that they do not count the time of a pause."""
        self.clocks.pause()

    def resume(self) -> None:
        """Start the run's clocks again after a pause."""
        self.clocks.resume()

    def serve(self) -> None:
        """Handle a finished background save, or a save requested by a signal, while the run is paused."""
        is_signalled = self._agreement is not None and self._agreement.take_save_signal()
        if any(self.gather(is_signalled, "the exchange of save requests during a pause")):
            self._saving.request("manual")
        if self._saving.is_due:
            self._saving.at_boundary()

    def take_signals(self) -> None:
        """If any rank has caught a signal, handle it on all ranks."""
        caught = self._signals.caught
        for name in self.gather(None if caught is None else caught.name, "the exchange of signals during a pause"):
            if name is not None and self._signals.received is None:
                self._signals.take(signal.Signals[name])
