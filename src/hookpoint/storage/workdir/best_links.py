"""Best links: the `best-…` folders, which contain hard links to a checkpoint's files, and the symbolic link `last`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.checkpoint.checkpoint_folder import UNREADABLE, discard, read_manifest, verified
from hookpoint.storage.checkpoint.layout import BEST, LAST, MANIFEST, best_name, checkpoints, safe_name
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir.catalog import Entry, best_folders
from hookpoint.storage.workdir.quarantine import move_damaged

logger = logging.getLogger("hookpoint")


def update(checkpoint: Path, tag: str) -> None:
    """Replace a tag's folder with a new folder that contains hard links to this checkpoint's files.

    The old folder is renamed first, and then the new folder gets the old folder's name. If the process is killed between these
    two steps, the tag has no folder, and `heal` creates it at the next start.
    """
    target = checkpoint.with_name(best_name(tag))
    staging = target.with_name(disk.hidden("staging", target.name))
    old = target.with_name(disk.hidden("deleting", target.name))
    try:
        disk.make_new_folder(staging)
        for name in (*read_manifest(checkpoint).files, MANIFEST):
            disk.link(checkpoint / name, staging / name)
        disk.sync_folder(staging)
        if disk.exists(target):
            disk.rename(target, old)
        try:
            disk.rename(staging, target)
        except OSError:
            if disk.exists(old):
                disk.rename(old, target)
            raise
        disk.sync_folder(target.parent)
    finally:
        discard(staging)
    discard(old)


def point_last(checkpoint: Path) -> None:
    """Make `last` a symbolic link to this checkpoint, if the file system supports links and nothing else has this name."""
    try:
        disk.point(checkpoint.with_name(LAST), checkpoint.name)
    except OSError as error:
        logger.debug("%s could not be created: %s", checkpoint.with_name(LAST), error)


def heal(workdir: Path, found: Sequence[Entry]) -> None:
    """Repair the best-… folders after a run was killed.

    Each folder then links to the newest valid checkpoint with its tag. If no checkpoint has the tag, an intact
    folder is kept, and a damaged folder is renamed.
    """
    newest = {best_name(tag): tag for entry in found if entry.manifest for tag in entry.manifest.tags if tag.startswith(BEST)}
    for name, tag in newest.items():
        _rename_earlier(checkpoints(workdir) / safe_name(tag), checkpoints(workdir) / name)
    for folder in best_folders(workdir):
        if folder.name not in newest:
            _rename_if_damaged(folder)
    for name, tag in newest.items():
        sources = [entry for entry in found if entry.manifest and tag in entry.manifest.tags]
        try:
            _heal(checkpoints(workdir) / name, tag, sources)
        except OSError as error:
            logger.warning("%s could not be repaired: %s", checkpoints(workdir) / name, error)
    good = [entry.path for entry in found if entry.manifest and not entry.manifest.is_of_exception]
    if good:
        point_last(good[-1])


def _rename_earlier(earlier: Path, folder: Path) -> None:
    """Rename a tag's folder if an earlier release created it under another name."""
    if earlier != folder and disk.is_folder(earlier) and not disk.exists(folder):
        try:
            disk.rename(earlier, folder)
        except OSError as error:
            logger.warning("%s could not be renamed: %s", earlier, error)


def _heal(folder: Path, tag: str, sources: list[Entry]) -> None:
    """Link a folder to the newest valid checkpoint in `sources`."""
    for entry in reversed(sources):
        if _has_files_of(entry.path, folder):
            return
        try:
            verified(entry.path)
        except UNREADABLE:
            continue
        update(entry.path, tag)
        return
    if disk.is_folder(folder):
        _rename_if_damaged(folder)


def _has_files_of(checkpoint: Path, folder: Path) -> bool:
    """Return whether a folder contains a checkpoint's files, as hard links or with the same content."""
    if disk.is_link(folder):
        return False
    with suppress(*UNREADABLE):
        names = [*read_manifest(checkpoint).files, MANIFEST]
        if all(disk.is_same(folder / name, checkpoint / name) for name in names):
            return True
        return disk.read(folder / MANIFEST) == disk.read(checkpoint / MANIFEST) and bool(verified(folder))
    return False


def _rename_if_damaged(folder: Path) -> None:
    try:
        verified(folder)
    except DamagedCheckpoint as error:
        move_damaged(folder, error)
    except (CannotResume, OSError) as error:
        logger.warning("%s could not be verified: %s", folder, error)
