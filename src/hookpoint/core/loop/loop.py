"""Loop: the context manager for a run, with the user's `for` loops inside.

with Loop(callbacks) as run:                 machine.begin_run
    for epoch in run.epochs(10):             machine.begin_epoch, end_epoch          (epochs.py)
        for batch in run.batches(data):      machine.begin_pass, begin_iteration ... (batches.py)
            ...
                                             machine.end_run
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import OutsideRun
from hookpoint.core.team.team import Team, place_from_environment

if TYPE_CHECKING:
    from types import TracebackType

    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.loop.machine import Machine
    from hookpoint.core.loop.options import LoopOptions
    from hookpoint.core.run.run import Run

EVERYWHERE: list[Any] = []  # callbacks that every new loop in this process adds after its own callbacks


class Loop:
    """A loop without default callbacks. `hookpoint.Loop` adds them, and documents how to use a loop.

    Pass options as `options` or by keyword. The run's team is created when the loop is entered, and closed when it is exited.
    All ranks must enter the loop together.

    The constructor imports the modules that a loop needs, so that importing the class stays fast.
    """

    def __init__(self, callbacks: Iterable[Any] = (), options: LoopOptions | None = None, **changes: Any) -> None:
        from dataclasses import replace

        from hookpoint.core.hooks.hooks import Hooks
        from hookpoint.core.loop.options import LoopOptions

        self.options = LoopOptions(**changes) if options is None else replace(options, **changes)
        self._stateful = self.options.stateful()
        self._place = place_from_environment()
        self._team = Team()
        self._compile = partial(Hooks, [*(callbacks if isinstance(callbacks, Iterable) else [callbacks]), *EVERYWHERE])
        self.hooks = self._compiled()
        if self.options.host is not None:
            self.options.host.check(self.hooks)
        self._machine: Machine | None = None
        self._was_entered = False

    def __enter__(self) -> Run:
        from hookpoint.core.loop._assembly import assemble, find_checkpoint

        if self._machine is not None:
            raise OutsideRun("this loop is already running.", create="a second Loop for a run inside this run")
        self._team = team = self.options.team()
        if team.size > 1:
            self._place = {"rank": team.rank, "local_rank": team.local_rank, "world_size": team.size}
        try:
            if self._was_entered or self._compiled_for != self._compile_options():
                self.hooks = self._compiled()  # compile the callbacks again, so that schedules start from zero
            self._was_entered = True
            self._machine = machine = assemble(self.hooks, self.options, self._stateful, self._team, self._place)
        except BaseException:
            self._team.close()
            raise
        try:
            find_checkpoint(machine)
            machine.begin_run()
        except BaseException:
            self._machine = None
            raise
        return machine.run

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if self._machine is None:
            raise OutsideRun("this loop is not running.", enter="with Loop(...) as run: and use run inside")
        try:
            return self._machine.end_run(error)
        finally:
            self._machine = None

    if not TYPE_CHECKING:  # type checkers report these attributes themselves

        def __getattr__(self, name: str) -> Any:
            from hookpoint.core.run.run import Run

            if not name.startswith("_") and hasattr(Run, name) and not hasattr(type(self), name):
                raise _NotOnLoop(
                    f"'{name}' belongs to the run, not to the Loop.", enter=f"with Loop(...) as run: and use run.{name}"
                )
            return object.__getattribute__(self, name)  # raises the usual error, or that of a subclass's property

    def _compiled(self) -> Hooks:
        self._compiled_for = self._compile_options()
        hooks = self._compile(**self._compiled_for)
        for entry in hooks.all_entries:
            entry.catches_stops = self.options.host is not None
        return hooks

    def _compile_options(self) -> dict[str, Any]:
        return {"rank": self._place["rank"], "local_rank": self._place["local_rank"], "is_in_team": self._team.size > 1}


class _NotOnLoop(OutsideRun, AttributeError):
    """An attribute of the run was read from the Loop. As an AttributeError, this error does not break `hasattr`."""
