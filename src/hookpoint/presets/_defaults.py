"""The default callbacks and monitors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hookpoint import callbacks as cb
from hookpoint.core.callback.callback import Callback


def with_defaults(callbacks: Any, extra_callbacks: Iterable[Any] | None, monitors: Iterable[Any] | None) -> list[Any]:
    """Return the user's callbacks, then the extra ones, then the monitors. None stands for the defaults.

    A default is left out if the user's list has one of its class. The user's list is not changed.
    """
    own = list(callbacks) if isinstance(callbacks, Iterable) and not isinstance(callbacks, Callback) else [callbacks]
    present = [type(callback) for callback in _opened(own)]
    for given, defaults in ((extra_callbacks, default_callbacks()), (monitors, default_monitors())):
        own += [default() for default in defaults if default not in present] if given is None else given
    return own


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
