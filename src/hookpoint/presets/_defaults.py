"""The callbacks and monitors that every run has unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hookpoint import callbacks as cb
from hookpoint.core.callback.callback import Callback


def with_defaults(callbacks: Any, extra_callbacks: Iterable[Any] | None, monitors: Iterable[Any] | None) -> list[Any]:
    """Return the user's callbacks, then the extra ones, then the monitors; None stands for the defaults.

    A default is left out when the user's list has one of its class. The list that was given is not changed.
    """
    own = list(callbacks) if isinstance(callbacks, Iterable) and not isinstance(callbacks, Callback) else [callbacks]
    present = [type(callback) for callback in _opened(own)]
    extra = (
        [default() for default in default_callbacks() if default not in present] if extra_callbacks is None else extra_callbacks
    )
    sinks = [default() for default in default_monitors() if default not in present] if monitors is None else monitors
    return [*own, *extra, *sinks]


def default_callbacks() -> tuple[type, ...]:
    """Return the classes of the default callbacks."""
    return (cb.MovingAverageSummary, cb.ProgressBar, cb.MergeAllSummaries, cb.RunUpdateOps)


def default_monitors() -> tuple[type, ...]:
    """Return the classes of the default monitors."""
    return (cb.TFEventWriter, cb.JSONWriter, cb.ScalarPrinter)


def _opened(callbacks: Iterable[Any]) -> Iterator[Any]:
    for callback in callbacks:
        inside = getattr(callback, "get_pipeline", None) if isinstance(callback, Callback) else None
        if callable(inside):
            yield from _opened(inside())
        else:
            yield callback
