"""Control: commands from outside that are applied at the boundaries of a run. `hookpoint.steering` implements it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hookpoint.core.log.logbook import Logbook
    from hookpoint.core.loop._agreement import Agreement
    from hookpoint.core.loop._resuming import Resuming
    from hookpoint.core.loop._saving import Saving
    from hookpoint.core.loop._signals import Signals
    from hookpoint.core.loop.host import Host
    from hookpoint.core.loop.run_objects import RunObjects


class Control(Protocol):
    """A source of commands. The machine calls it at step boundaries, outside accumulation windows, if it has work.

    An iteration does not ask: whoever has a command calls `ControlledLoop.wake`, which raises the flag that an iteration
    tests for saves. `has_work` keeps that flag up.
    """

    @property
    def has_work(self) -> bool: ...

    def begin(self) -> None:
        """Start to take commands, once the state is restored. All ranks call this."""

    def announce(self) -> None:
        """Take notice, on every rank, that the chief has commands."""

    def restore(self) -> None:
        """Replay the commands that came at the boundary of the checkpoint, after it was written. All ranks call this."""

    def at_boundary(self) -> None:
        """Apply what is due, before the checkpoint of this boundary is written."""

    def end(self) -> None:
        """Take no further commands; the run ends."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class NoControl:
    """Control of a run that takes no commands."""

    has_work = False

    def __init__(self, loop: ControlledLoop) -> None:
        self._loop, self._state = loop, dict[str, Any]()

    def begin(self) -> None:
        self._loop.gather(None, "live control")  # other ranks may want commands

    def announce(self) -> None: ...

    def restore(self) -> None: ...

    def at_boundary(self) -> None: ...

    def end(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._state = dict(state)  # for a later start that takes commands


class ControlledLoop:
    """A loop as control sees it: what a command can change, and what ranks need to change it together."""

    def __init__(
        self,
        objects: RunObjects,
        saving: Saving,
        resuming: Resuming,
        signals: Signals,
        agreement: Agreement | None,
        host: Host | None,
    ) -> None:
        self.run, self.hooks, self.clocks = objects.run, objects.hooks, objects.clocks
        self.host = host
        self._logbook: Logbook = objects.logbook
        self._objects, self._saving, self._resuming, self._signals = objects, saving, resuming, signals
        self._agreement = agreement

    @property
    def has_resumed(self) -> bool:
        """Whether the run started from a checkpoint."""
        return self._resuming.has_resumed

    @property
    def counts_differ(self) -> bool:
        """Whether the run resumed with other ranks or data, so that its iterations are not those of the checkpoint."""
        return self._resuming.moved is not None or self._resuming.has_other_data or bool(self._objects.positions.notes)

    @property
    def is_in_team(self) -> bool:
        return self._agreement is not None

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was requested on all ranks."""
        return self._objects.verdicts.stop

    def wake(self) -> None:
        """Have control called at the next boundary, on all ranks; from any thread of the chief."""
        if self._agreement is None:
            self._saving.is_due = True
        else:
            self._agreement.request_control()

    def wake_here(self) -> None:
        """Have control called at the next boundary on this rank; all ranks may call it at the same place."""
        self._saving.is_due = True

    def gather(self, value: Any, what: str) -> list[Any]:
        """Return the values of all ranks, in rank order. Does not change when other requests are agreed on."""
        return [value] if self._agreement is None else self._agreement.gather(value, what, counts=False)

    @property
    def log_every(self) -> int:
        return self._logbook.log_every

    def set_log_every(self, steps: int, *, moves_next: bool = True) -> None:
        """Log every so many steps; with `moves_next`, also move the next log step."""
        self._logbook.set_log_every(steps, moves_next=moves_next)

    def save(self, tag: str) -> tuple[Any, str]:
        """Write a checkpoint now; return its path, and why it was not written if so."""
        return self._saving.save_now(tag)

    def check_save(self) -> None:
        """Raise if there is nowhere to save to."""
        self._saving.require_store()

    def pause(self) -> None:
        """Stop the clocks."""
        self.clocks.pause()

    def resume(self) -> None:
        """Start the clocks again."""
        self.clocks.resume()

    def serve(self) -> None:
        """Handle a finished background save, or a save requested by a signal, while the run is paused."""
        is_signalled = self._agreement is not None and self._agreement.take_save_signal()
        if any(self.gather(is_signalled, "the saves of a pause")):
            self._saving.request("manual")
        if self._saving.is_due:
            self._saving.at_boundary()

    def take_signals(self) -> None:
        """Act on a signal that any rank has caught, on all ranks."""
        caught = self._signals.caught
        for name in self.gather(None if caught is None else caught.name, "the signals of a pause"):
            if name is not None and self._signals.received is None:
                self._signals.take(signal.Signals[name])
