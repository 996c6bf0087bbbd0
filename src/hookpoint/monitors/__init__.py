"""Monitors receive everything that is logged. Each monitor is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint._exports import MONITORS, load

if TYPE_CHECKING:
    from hookpoint.monitors.csv_logger import CSVLogger as CSVLogger
    from hookpoint.monitors.history import History as History
    from hookpoint.monitors.json_writer import JSONWriter as JSONWriter
    from hookpoint.monitors.mlflow_monitor import MLflowMonitor as MLflowMonitor
    from hookpoint.monitors.remote_monitor import RemoteMonitor as RemoteMonitor
    from hookpoint.monitors.scalar_printer import ScalarPrinter as ScalarPrinter
    from hookpoint.monitors.tf_event_writer import TFEventWriter as TFEventWriter
    from hookpoint.monitors.wandb_monitor import WandbMonitor as WandbMonitor
    from hookpoint.storage.json_rows import read_scalars as read_scalars

__all__ = sorted(MONITORS)


def __getattr__(name: str) -> Any:
    value = globals()[name] = load("hookpoint.monitors", MONITORS, name)
    return value


def __dir__() -> list[str]:
    return __all__
