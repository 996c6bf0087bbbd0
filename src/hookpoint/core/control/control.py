"""Control: external commands, applied at step and epoch boundaries during a run. `hookpoint.steering` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hookpoint.core.control.controlled_loop import ControlledLoop


class Control(Protocol):
    """A source of commands. While `has_work` is true, the loop calls `at_boundary` at each step boundary.

    There are no step boundaries inside an accumulation window.

    Iterations do not poll for commands. Each iteration checks a single flag, which is set if a save is pending. When a command
    arrives, `ControlledLoop.wake` sets the same flag. The flag stays set while `has_work` is true.
    """

    @property
    def has_work(self) -> bool: ...

    def begin(self) -> None:
        """Start accepting commands once the state is restored. All ranks call this."""

    def announce(self) -> None:
        """Record on every rank that the chief has commands."""

    def restore(self) -> None:
        """Replay commands after a checkpoint is restored. All ranks call this.

        These are the commands that the run applied at the checkpoint's step, but only after it had written the checkpoint.
        """

    def at_boundary(self) -> None:
        """Apply the commands that are due. Called before the checkpoint at this boundary is written."""

    def end(self) -> None:
        """Stop accepting commands, because the run is ending."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class NoControl:
    """Control for a run that accepts no commands."""

    has_work = False

    def __init__(self, loop: ControlledLoop) -> None:
        self._loop, self._state = loop, dict[str, Any]()

    def begin(self) -> None:
        self._loop.gather(None, "live control")  # all ranks must call this, because other ranks may accept commands

    def announce(self) -> None: ...

    def restore(self) -> None: ...

    def at_boundary(self) -> None: ...

    def end(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # Later checkpoints also contain this state, because the run may accept commands when it is started again.
        self._state = dict(state)
