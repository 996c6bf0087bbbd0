"""Monitors: what receives everything that is logged. Names are loaded when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.monitors.csv_logger import CSVLogger
    from hookpoint.monitors.history import History
    from hookpoint.monitors.json_writer import JSONWriter, read_scalars
    from hookpoint.monitors.mlflow_monitor import MLflowMonitor
    from hookpoint.monitors.remote_monitor import RemoteMonitor
    from hookpoint.monitors.scalar_printer import ScalarPrinter
    from hookpoint.monitors.tf_event_writer import TFEventWriter
    from hookpoint.monitors.wandb_monitor import WandbMonitor

_WHERE = {
    "CSVLogger": "monitors.csv_logger",
    "History": "monitors.history",
    "JSONWriter": "monitors.json_writer",
    "MLflowMonitor": "monitors.mlflow_monitor",
    "RemoteMonitor": "monitors.remote_monitor",
    "ScalarPrinter": "monitors.scalar_printer",
    "TFEventWriter": "monitors.tf_event_writer",
    "WandbMonitor": "monitors.wandb_monitor",
    "read_scalars": "monitors.json_writer",
}

__all__ = [
    "CSVLogger",
    "History",
    "JSONWriter",
    "MLflowMonitor",
    "RemoteMonitor",
    "ScalarPrinter",
    "TFEventWriter",
    "WandbMonitor",
    "read_scalars",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"hookpoint.monitors has no '{name}'")
    value = getattr(import_module(f"hookpoint.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
