"""Contexts: callbacks that are context managers, as in MindSpore. A run enters them before on_setup and exits them last."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import CompileError, HookpointWarning, StopRun

if TYPE_CHECKING:
    from hookpoint.core.hooks.entry import Entry


class Contexts:
    """The callbacks with `__enter__` and `__exit__`, in list order. A pipeline or wrapper comes before the callbacks in it."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._managers = list(_managers(entries))
        self._entered: list[tuple[Entry, Any]] = []

    def enter(self, run: Any) -> None:
        """Call each `__enter__`. If one fails, the callbacks entered before it are exited when the run ends."""
        for entry, callback in self._managers:
            try:
                target = callback.__enter__()
            except StopRun as stop:
                run.stop(stop.reason)
                continue
            except Exception as error:
                if entry.on_error == "raise":
                    error.add_note(f"in callback {entry.name} at __enter__")
                    raise
                entry.fail("__enter__", error)
                continue
            self._entered.append((entry, callback))
            if target is not None and target is not callback:
                _warn(
                    f"{entry.name}.__enter__ returned a value of type {type(target).__name__}, which is ignored: return self."
                )

    def leave(self, error: BaseException | None) -> list[Exception]:
        """Call each `__exit__` with the run's exception, in reverse order. Return the errors that they raise."""
        problems: list[Exception] = []
        interrupt: BaseException | None = None
        while self._entered:
            entry, callback = self._entered.pop()
            try:
                if callback.__exit__(type(error) if error is not None else None, error, getattr(error, "__traceback__", None)):
                    _warn(f"{entry.name}.__exit__ returned a true value, which is ignored: the exception is not suppressed.")
            except StopRun:
                pass  # the run has already ended
            except Exception as problem:
                problem.add_note(f"in callback {entry.name} at __exit__")
                if entry.on_error == "raise":
                    problems.append(problem)
                else:
                    entry.fail("__exit__", problem)
            except BaseException as raised:
                interrupt = raised
        if interrupt is not None:
            raise interrupt
        return problems


def _managers(entries: Iterable[Entry]) -> Iterator[tuple[Entry, Any]]:
    seen: set[int] = set()
    for entry in entries:
        for callback in (*entry.path, entry.subject):
            has = [hasattr(type(callback), method) for method in ("__enter__", "__exit__")]
            if any(has) and id(callback) not in seen:
                seen.add(id(callback))
                if not all(has):
                    lacks, name = ("__enter__", "__exit__")[has.index(False)], type(callback).__name__
                    raise CompileError(f"{name} is half a context manager: it has no {lacks}.", define=f"{name}.{lacks}")
                yield entry, callback


def _warn(text: str) -> None:
    warnings.warn(text, HookpointWarning, stacklevel=3)
