"""Saved commands: find out which commands a run had applied before it saved a checkpoint."""

from __future__ import annotations

from pathlib import Path

from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.workdir.catalog import entries


def good_checkpoints(run_folder: Path) -> list[tuple[Path, Manifest]]:
    """Return the checkpoints that a run can resume from, oldest first."""
    found = ((one.path, one.manifest) for one in entries(run_folder))
    return [(path, manifest) for path, manifest in found if manifest is not None and not manifest.is_of_exception]


def last_command(manifest: Manifest) -> int:
    """Return the highest journal number of a command that was applied before a checkpoint was saved, or 0 if none was."""
    number = manifest.clocks.get("commands")
    return number if isinstance(number, int) else 0


def includes(manifest: Manifest, number: int) -> bool:
    """Return whether the command with this journal number had been applied before a checkpoint was saved.

    A resumed run replays commands from the journal. If the checkpoint was saved during a replay, the commands that had not been
    replayed yet do not count as applied.
    """
    pending = manifest.clocks.get("pending_commands")
    return number <= last_command(manifest) and not (isinstance(pending, list) and number in pending)
