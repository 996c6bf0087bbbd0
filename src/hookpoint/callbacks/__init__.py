"""The callbacks that come with hookpoint, monitors among them: `from hookpoint import callbacks as cb`.

Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.callbacks.backup_and_restore import BackupAndRestore
    from hookpoint.callbacks.checkpoint_config import CheckpointConfig
    from hookpoint.callbacks.max_saver import MaxSaver
    from hookpoint.callbacks.merge_all_summaries import MergeAllSummaries
    from hookpoint.callbacks.min_saver import MinSaver
    from hookpoint.callbacks.model_checkpoint import ModelCheckpoint
    from hookpoint.callbacks.model_saver import ModelSaver
    from hookpoint.callbacks.moving_average_summary import MovingAverageSummary
    from hookpoint.callbacks.progress_bar import ProgressBar
    from hookpoint.callbacks.run_update_ops import RunUpdateOps
    from hookpoint.callbacks.top_k_saver import TopKSaver

_WHERE = {
    "BackupAndRestore": "callbacks.backup_and_restore",
    "CheckpointConfig": "callbacks.checkpoint_config",
    "JSONWriter": "monitors.json_writer",
    "MaxSaver": "callbacks.max_saver",
    "MergeAllSummaries": "callbacks.merge_all_summaries",
    "MinSaver": "callbacks.min_saver",
    "ModelCheckpoint": "callbacks.model_checkpoint",
    "ModelSaver": "callbacks.model_saver",
    "MovingAverageSummary": "callbacks.moving_average_summary",
    "ProgressBar": "callbacks.progress_bar",
    "RunUpdateOps": "callbacks.run_update_ops",
    "ScalarPrinter": "monitors.scalar_printer",
    "TFEventWriter": "monitors.tf_event_writer",
    "TopKSaver": "callbacks.top_k_saver",
}

# Monitors are a layer beside this one: type checkers see them in hookpoint.monitors.
__all__ = [
    "BackupAndRestore",
    "CheckpointConfig",
    "JSONWriter",
    "MaxSaver",
    "MergeAllSummaries",
    "MinSaver",
    "ModelCheckpoint",
    "ModelSaver",
    "MovingAverageSummary",
    "ProgressBar",
    "RunUpdateOps",
    "ScalarPrinter",
    "TFEventWriter",
    "TopKSaver",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"hookpoint.callbacks has no '{name}'")
    value = getattr(import_module(f"hookpoint.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
