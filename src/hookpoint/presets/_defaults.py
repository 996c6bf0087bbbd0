"""The default callbacks and monitors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from hookpoint import callbacks as cb
from hookpoint.core.callback import default_callbacks as added


def with_defaults(callbacks: Any, extra_callbacks: Iterable[Any] | None, monitors: Iterable[Any] | None) -> list[Any]:
    """Return the user's callbacks, then the extra callbacks, then the monitors.

    If `extra_callbacks` or `monitors` is None, the default callbacks or monitors are used instead. A default callback
    is omitted if the user's list contains a callback of the same class. The user's list is not modified.
    """
    callback_classes = (cb.MovingAverageSummary, cb.ProgressBar, cb.MergeAllSummaries, cb.RunUpdateOps)
    monitor_classes = (cb.TFEventWriter, cb.JSONWriter, cb.ScalarPrinter)
    return added.with_defaults(callbacks, (extra_callbacks, callback_classes), (monitors, monitor_classes))


def new_profile() -> Callable[[], Any] | None:
    """Return a function that creates a torch profiler for a trace, or None if torch is not installed."""
    return cb.ProfilerTrace.new_profile if find_spec("torch") is not None else None
