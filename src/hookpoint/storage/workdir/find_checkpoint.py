"""Find the checkpoint from which a run resumes."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookpoint.core.checkpoint.store import Resume
from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.checkpoint.checkpoint_folder import is_like_a_checkpoint, read_manifest, refuse_link, strays, verified
from hookpoint.storage.checkpoint.layout import CHECKPOINTS, checkpoints
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.checkpoint.state_files import read_state
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir import quarantine
from hookpoint.storage.workdir.catalog import places

logger = logging.getLogger("hookpoint")

START_OVER = 'over with resume="never", which moves them to previous/'


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint to resume from, verified and read."""

    path: Path
    manifest: Manifest
    state: dict[str, Any]


def find(workdir: Path, resume: Resume) -> Found | None:
    """Return the checkpoint to resume from: the newest good one of the workdir for "auto" and "must", else that at a path."""
    if resume not in ("auto", "must"):
        return at_path(Path(resume))
    found = newest_good(workdir)
    if found is None and resume == "must":
        raise CannotResume(
            f"there is no checkpoint in {workdir} to resume from.", start='from scratch if there is none with resume="auto"'
        )
    return found


def newest_good(workdir: Path) -> Found | None:
    """Return the newest intact checkpoint, and rename newer ones that are damaged. Return None if there are no checkpoints.

    If all checkpoints are damaged, they stay where they are, and CannotResume is raised.
    """
    damaged = []
    for _, path in reversed(places(workdir)):
        try:
            if read_manifest(path).is_of_exception:
                logger.info("%s is skipped: it was saved when an exception ended the run", path)
                continue
            found = read(path)
        except DamagedCheckpoint as error:
            damaged.append((path, error))
        except OSError as error:
            raise unreadable(path, error) from error
        else:
            for newer in damaged:
                quarantine.move_damaged(*newer)
            return found
    if damaged:
        problems = "\n".join(f"  {error}" for _, error in damaged)
        raise CannotResume(
            f"all checkpoints in {checkpoints(workdir)} are damaged.\n{problems}",
            start=START_OVER,
            restore="them from a backup",
        )
    return None


def at_path(path: Path) -> Found:
    """Return the checkpoint at a path, or the newest one of a workdir. Raise CannotResume if it is damaged."""
    try:
        folder = folder_at(path)
        return read(folder)
    except DamagedCheckpoint as error:
        raise CannotResume(str(error), resume='with "auto", for the newest good one of a workdir') from error
    except OSError as error:
        raise unreadable(path, error) from error


def folder_at(path: Path) -> Path:
    """Return the checkpoint folder of a path."""
    refuse_link(path)
    if not disk.is_folder(path, follow=True):
        raise CannotResume(
            f"there is no folder {path} to resume from.",
            give='"auto", "must", "never", a workdir or a checkpoint folder',
        )
    resolved = Path(os.path.realpath(path))
    if is_like_a_checkpoint(resolved):
        return resolved
    workdir = resolved.parent if resolved.name == CHECKPOINTS else resolved
    for _, folder in reversed(places(workdir)):
        if not read_manifest(folder).is_of_exception:
            return folder
    raise CannotResume(f"there is no checkpoint in {path} to resume from.", give="the workdir of a run that has some")


def read(folder: Path) -> Found:
    """Verify and read a checkpoint folder. Raise DamagedCheckpoint if it is damaged."""
    manifest = verified(folder)
    if others := strays(folder, manifest):
        logger.warning("%s has files that are %s", folder, others)
    return Found(folder, manifest, read_state(folder, manifest.files))


def unreadable(path: Path, error: OSError) -> CannotResume:
    """Return the error for a checkpoint that cannot be read from disk."""
    where = f" ({error.filename})" if error.filename and os.fspath(error.filename) != os.fspath(path) else ""
    return CannotResume(
        f"{path} cannot be read: {error.strerror or error}{where}.",
        check="that the disk is mounted and you may read the files",
        start='over with resume="never"',
    )
