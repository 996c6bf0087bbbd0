"""Saved commands: find out which commands the checkpoints in a run folder include."""

from __future__ import annotations

from pathlib import Path

from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.workdir.catalog import entries


def good_checkpoints(run_folder: Path) -> list[tuple[Path, Manifest]]:
    """Return the checkpoints that a run can resume from, oldest first."""
    found = ((one.path, one.manifest) for one in entries(run_folder))
    return [(path, manifest) for path, manifest in found if manifest is not None and not manifest.is_of_exception]


def last_command(manifest: Manifest) -> int:
    """Return the highest journal number of a command that a checkpoint includes, or 0 if there is none."""
    number = manifest.clocks.get("commands")
    return number if isinstance(number, int) else 0


def includes(manifest: Manifest, number: int) -> bool:
    """Return whether a checkpoint includes a command.

    A checkpoint that was saved during a replay does not include the commands that had not been replayed yet.
    """
    pending = manifest.clocks.get("pending_commands")
    return number <= last_command(manifest) and not (isinstance(pending, list) and number in pending)
