"""RunEngine: an ignite engine that a hookpoint run drives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

from hookpoint.core.errors import BadLoop, CompileError

# Ignite events that a run never fires.
NEVER = ("DATALOADER_STOP_ITERATION", "INTERRUPT")
PROFILERS = ("BasicTimeProfiler", "HandlersTimeProfiler")


@dataclass
class Calls:
    """The name of the handler that one of the run's engines is calling."""

    handler: str = ""


def run_engine(shown: str, calls: Calls) -> Any:
    """Return a new engine. The engine records its handlers, and which handler terminates it."""
    module = import_module("ignite.engine")
    never = [getattr(module.Events, name) for name in NEVER if hasattr(module.Events, name)]

    class RunEngine(module.Engine):  # type: ignore[misc,name-defined]
        """An ignite engine whose events a run fires."""

        def __init__(self) -> None:
            self.owners: list[Any] = []  # the objects that own the handlers, without duplicates
            self.terminated_by = ""
            # Maps the id of each handler, and the id of its wrapper, to the pair (handler, wrapper).
            self._named: dict[int, tuple[Any, Callable[..., Any]]] = {}
            super().__init__(lambda engine, batch: None)

        def add_event_handler(self, event_name: Any, handler: Any, *args: Any, **kwargs: Any) -> Any:
            if event_name in never:
                raise CompileError(f"{_name_of(handler)}: a run does not have the event {event_name}.")
            _check(handler)
            owner = getattr(handler, "__self__", handler)
            if id(handler) not in self._named and not any(owner is known for known in self.owners):
                self.owners.append(owner)
            return super().add_event_handler(event_name, self._wrapped(handler), *args, **kwargs)

        def has_event_handler(self, handler: Any, event_name: Any = None) -> bool:
            _check(handler)  # profilers call this method first, and then insert themselves into the list of handlers
            has: bool = super().has_event_handler(self._wrapped(handler), event_name)
            return has

        def remove_event_handler(self, handler: Any, event_name: Any) -> None:
            super().remove_event_handler(self._wrapped(handler), event_name)

        def terminate(self, *args: Any, **kwargs: Any) -> None:
            self.terminated_by = f"{calls.handler or 'the code around the run'} called {shown}.terminate()"
            super().terminate(*args, **kwargs)

        def fire_exception(self, error: BaseException) -> None:
            self._fire_event(module.Events.EXCEPTION_RAISED, error)

        def run(self, *args: Any, **kwargs: Any) -> Any:
            raise BadLoop(f"{shown}.run(...): a hookpoint run drives this engine.", call="runner.fit(...)")

        def _wrapped(self, handler: Any) -> Callable[..., Any]:
            """Return a function that calls a handler and records the handler's name.

            If the handler stops the run, the reason for the stop contains this name.
            """
            if id(handler) in self._named:
                return self._named[id(handler)][1]
            name = _name_of(handler)

            @wraps(handler)
            def call(*args: Any, **kwargs: Any) -> Any:
                outer, calls.handler = calls.handler, name
                try:
                    return handler(*args, **kwargs)
                finally:
                    calls.handler = outer

            self._named[id(handler)] = self._named[id(call)] = handler, call
            return call

    return RunEngine()


def _check(handler: Any) -> None:
    name = type(getattr(handler, "__self__", handler)).__name__
    if name in PROFILERS:
        use = "hookpoint.callbacks.HookTrace or ProfilerTrace"
        raise CompileError(f"{name} (ignite) measures ignite's own loop, not a run.", use=use)


def _name_of(handler: Any) -> str:
    owner = getattr(handler, "__self__", None)
    return str(getattr(handler, "__name__", type(handler).__name__) if owner is None else type(owner).__name__)
