"""The default callbacks and monitors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hookpoint import callbacks as cb
from hookpoint.core.callback.callback import Callback


def with_defaults(callbacks: Any, extra_callbacks: Iterable[Any] | None, monitors: Iterable[Any] | None) -> list[Any]:
    """Return the user's callbacks, then the extra ones, then the monitors. None selects the defaults.

    A default is left out if the user's list has one of its class. The user's list is not changed.
    """
    own = list(callbacks) if isinstance(callbacks, Iterable) and not isinstance(callbacks, Callback) else [callbacks]
    present = [type(callback) for callback in _flattened(own)]
    default_callbacks = (cb.MovingAverageSummary, cb.ProgressBar, cb.MergeAllSummaries, cb.RunUpdateOps)
    default_monitors = (cb.TFEventWriter, cb.JSONWriter, cb.ScalarPrinter)
    for chosen, defaults in ((extra_callbacks, default_callbacks), (monitors, default_monitors)):
        own += [default() for default in defaults if default not in present] if chosen is None else chosen
    return own


def _flattened(callbacks: Iterable[Any]) -> Iterator[Any]:
    """Yield the callbacks, and those inside pipelines instead of the pipelines."""
    for callback in callbacks:
        inside = getattr(callback, "get_pipeline", None) if isinstance(callback, Callback) else None
        if callable(inside):
            yield from _flattened(inside())
        else:
            yield callback
