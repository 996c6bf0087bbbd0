"""Aside: what is in the way of a run is moved, never deleted."""

from __future__ import annotations

import logging
from pathlib import Path

from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.core.schedule.moment import Moment
from hookpoint.storage.checkpoint.checkpoint_folder import read_manifest
from hookpoint.storage.checkpoint.layout import (
    OF_A_RUN,
    PREVIOUS,
    Place,
    checkpoints,
    damaged_name,
    is_of_checkpoints,
    next_previous,
)
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir.catalog import best_folders, entries

logger = logging.getLogger("hookpoint")


def move_run(workdir: Path) -> None:
    """Move an earlier run in this workdir to previous/001 or the like: the files that we make, and no others.

    Checkpoints go first: what a kill leaves is then never taken for a run to go on with.
    """
    moved = _move([workdir / name for name in OF_A_RUN], workdir)
    if moved is not None:
        logger.info("the earlier run in %s is now in %s", workdir, moved)


def move_foreign(workdir: Path) -> None:
    """Move what is among the checkpoints and not ours to previous/: a run would neither use nor keep it. Hidden files stay."""
    folder = checkpoints(workdir)
    foreign = [folder / name for name in disk.names(folder) if not is_of_checkpoints(name) and not name.startswith(".")]
    moved = _move(foreign, workdir)
    if moved is not None:
        names = ", ".join(path.name for path in foreign)
        logger.warning("%s has files that are not of hookpoint; they are now in %s: %s", folder, moved, names)


def move_later(workdir: Path, place: Place, moment: Moment) -> None:
    """Move what was saved after a checkpoint aside, as the run resumes from there: later ones, and best-… folders of them.

    `place` and `moment` are those of the checkpoint; the step alone tells nothing where none is counted.
    """

    def is_later(manifest: Manifest | None) -> bool:
        return manifest is not None and manifest.moment.is_after(moment)

    after = [entry for entry in entries(workdir) if entry.place > place or is_later(entry.manifest)]
    later = [entry.path for entry in after]
    for path in best_folders(workdir):
        found = _manifest(path)
        if is_later(found) or (found is not None and any(found == entry.manifest for entry in after)):
            later.append(path)
    moved = _move(later, workdir)
    if moved is not None:
        names = ", ".join(path.name for path in later)
        logger.warning("the run goes on from %s; what was saved later is now in %s: %s", place.name, moved, names)


def move_damaged(path: Path, error: DamagedCheckpoint) -> None:
    """Give a damaged checkpoint or best-… folder a name that nobody goes on from, and say so."""
    target = path.with_name(damaged_name(path.name, disk.names(path.parent)))
    disk.rename(path, target)
    disk.sync_folder(path.parent)
    logger.warning("%s It is now called %s.", error, target.name)


def _move(paths: list[Path], workdir: Path) -> Path | None:
    """Move files and folders that hold something to a new folder in previous/; return that, or None where there is nothing."""
    found = [path for path in paths if _holds_something(path)]
    if not found:
        return None
    previous = workdir / PREVIOUS
    target = previous / next_previous(disk.names(previous))
    for path in found:
        new = target / path.relative_to(workdir)
        disk.make_folder(new.parent)
        disk.rename(path, new)
        disk.sync_folder(new.parent)
    disk.sync_folder(workdir)
    if disk.is_folder(checkpoints(workdir)):
        disk.sync_folder(checkpoints(workdir))
    return target


def _holds_something(path: Path) -> bool:
    return bool(disk.names(path)) if disk.is_folder(path) else disk.exists(path)


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except (DamagedCheckpoint, CannotResume):
        return None
