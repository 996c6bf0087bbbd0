"""Quarantine: move or rename files that a run must not use. Files are never deleted."""

from __future__ import annotations

import logging
from pathlib import Path

from hookpoint.core.errors import DamagedCheckpoint
from hookpoint.core.schedule.moment import Moment
from hookpoint.core.text.terminal import say
from hookpoint.storage.checkpoint import layout
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir import named_links
from hookpoint.storage.workdir.catalog import best_folders, entries, manifest_of

logger = logging.getLogger("hookpoint")


def move_run(workdir: Path) -> None:
    """Move an earlier run's files from this workdir to previous/001. If this folder exists, use the next unused number.

    Checkpoints are moved first, so that no run resumes from them by mistake if the process is killed partway through.
    """
    moved = _move([workdir / name for name in layout.RUN_FILES], workdir)
    if moved is not None:
        say(f"The earlier run in {workdir} was moved to {moved}.")


def move_foreign(workdir: Path) -> None:
    """Move files that hookpoint did not create from the checkpoints folder to previous/. Hidden files are not moved."""
    folder = layout.checkpoints(workdir)
    unknown = [name for name in disk.names(folder) if not layout.is_of_checkpoints(name) and not name.startswith(".")]
    foreign = [folder / name for name in unknown if not named_links.is_one(folder / name)]
    moved = _move(foreign, workdir)
    if moved is not None:
        names = ", ".join(path.name for path in foreign)
        logger.warning("%s contains files that hookpoint did not create; they were moved to %s: %s", folder, moved, names)


def move_later(workdir: Path, place: layout.Place, moment: Moment) -> None:
    """Move checkpoints and best-… folders to previous/ if they are later than the checkpoint that the run resumes from.

    `place` and `moment` describe that checkpoint. Comparing steps is not enough: in a loop without steps, all checkpoints
    have the same step.
    """

    def is_later(manifest: Manifest | None) -> bool:
        return manifest is not None and manifest.moment.is_after(moment)

    after = [entry for entry in entries(workdir) if entry.place > place or is_later(entry.manifest)]
    later = [entry.path for entry in after]
    for path in best_folders(workdir):
        manifest = manifest_of(path)
        if is_later(manifest) or (manifest is not None and any(manifest == entry.manifest for entry in after)):
            later.append(path)
    # The journal is moved too: commands that were given after the checkpoint must not be replayed.
    moved = _move([*later, workdir / layout.JOURNAL], workdir)
    if moved is not None and later:
        names = ", ".join(path.name for path in later)
        logger.warning("the run resumes from %s; later checkpoints were moved to %s: %s", place.name, moved, names)


def move_damaged(path: Path, error: DamagedCheckpoint) -> None:
    """Rename a damaged checkpoint or best-… folder, so that no run resumes from it, and log a warning."""
    target = path.with_name(layout.damaged_name(path.name, disk.names(path.parent)))
    disk.rename(path, target)
    disk.sync_folder(path.parent)
    logger.warning("%s It was renamed to %s.", error, target.name)


def _move(paths: list[Path], workdir: Path) -> Path | None:
    """Move files and non-empty folders to a new folder in previous/. Return this folder, or None if nothing was moved."""
    paths = [path for path in paths if _is_not_empty(path)]
    if not paths:
        return None
    previous = workdir / layout.PREVIOUS
    target = previous / layout.next_previous(disk.names(previous))
    for path in paths:
        new = target / path.relative_to(workdir)
        disk.make_folder(new.parent)
        disk.rename(path, new)
        disk.sync_folder(new.parent)
    disk.sync_folder(workdir)
    if disk.is_folder(layout.checkpoints(workdir)):
        disk.sync_folder(layout.checkpoints(workdir))
    return target


def _is_not_empty(path: Path) -> bool:
    return bool(disk.names(path)) if disk.is_folder(path) else disk.exists(path)
