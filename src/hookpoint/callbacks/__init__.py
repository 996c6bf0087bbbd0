"""The callbacks that come with hookpoint, monitors among them: `from hookpoint import callbacks as cb`.

Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.callbacks.merge_all_summaries import MergeAllSummaries
    from hookpoint.callbacks.moving_average_summary import MovingAverageSummary
    from hookpoint.callbacks.progress_bar import ProgressBar
    from hookpoint.callbacks.run_update_ops import RunUpdateOps

_WHERE = {
    "JSONWriter": "monitors.json_writer",
    "MergeAllSummaries": "callbacks.merge_all_summaries",
    "MovingAverageSummary": "callbacks.moving_average_summary",
    "ProgressBar": "callbacks.progress_bar",
    "RunUpdateOps": "callbacks.run_update_ops",
    "ScalarPrinter": "monitors.scalar_printer",
    "TFEventWriter": "monitors.tf_event_writer",
}

# Monitors are a layer beside this one: type checkers see them in hookpoint.monitors.
__all__ = [
    "JSONWriter",
    "MergeAllSummaries",
    "MovingAverageSummary",
    "ProgressBar",
    "RunUpdateOps",
    "ScalarPrinter",
    "TFEventWriter",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"hookpoint.callbacks has no '{name}'")
    value = getattr(import_module(f"hookpoint.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
