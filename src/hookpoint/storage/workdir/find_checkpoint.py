"""Find the checkpoint that a run resumes from."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hookpoint.core.checkpoint.store import Resume
from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.checkpoint.checkpoint_folder import is_like_a_checkpoint, read_manifest, refuse_link, strays, verified
from hookpoint.storage.checkpoint.layout import checkpoints, workdir_of
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.checkpoint.state_files import read_state
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir import quarantine
from hookpoint.storage.workdir.catalog import places

logger = logging.getLogger("hookpoint")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint to resume from. It has been verified and read."""

    path: Path
    manifest: Manifest
    state: dict[str, Any]


def find(workdir: Path, resume: Resume) -> Found | None:
    """Return the checkpoint to resume from: the newest valid one in the workdir ("auto", "must") or the one at a path."""
    if resume not in ("auto", "must"):
        return at_path(Path(resume))
    found = newest_good(workdir)
    if found is None and resume == "must":
        raise CannotResume(
            f"there is no checkpoint in {workdir} to resume from.", allow='a start from scratch with resume="auto"'
        )
    return found


def newest_good(workdir: Path) -> Found | None:
    """Return the newest intact checkpoint, and rename newer ones that are damaged. Return None if there are no checkpoints.

    Raises CannotResume if all checkpoints are damaged. In that case, none is renamed.
    """
    found, damaged = search(workdir, read)
    if found is None and damaged:
        start_over = 'over with resume="never", which moves them to previous/'
        raise all_damaged(workdir, damaged, start=start_over, restore="them from a backup")
    for path, error in damaged.items():
        quarantine.move_damaged(path, error)
    return found


def search(workdir: Path, read: Callable[[Path], T]) -> tuple[T | None, dict[Path, DamagedCheckpoint]]:
    """Read the newest checkpoint that can be resumed from. If `read` raises DamagedCheckpoint, try the next older one.

    Returns the result of `read`, or None if there is no intact checkpoint. Also returns a dict that maps each damaged
    checkpoint's folder to its error. Checkpoints that were saved after an exception are skipped.
    """
    damaged: dict[Path, DamagedCheckpoint] = {}
    for _, path in reversed(places(workdir)):
        try:
            if not read_manifest(path).is_of_exception:
                return read(path), damaged
            logger.info("%s is skipped: it was saved when an exception ended the run", path)
        except DamagedCheckpoint as error:
            damaged[path] = error
        except OSError as error:
            raise unreadable(path, error) from error
    return None, damaged


def all_damaged(workdir: Path, damaged: Mapping[Path, DamagedCheckpoint], **cures: str) -> CannotResume:
    """Return the error for a workdir in which all checkpoints are damaged."""
    problems = "\n".join(f"  {error}" for error in damaged.values())
    return CannotResume(f"all checkpoints in {checkpoints(workdir)} are damaged.\n{problems}", **cures)


def at_path(path: Path) -> Found:
    """Return the checkpoint at a path. For a workdir, return its newest checkpoint. Raise CannotResume if it is damaged."""
    try:
        return read(folder_at(path))
    except DamagedCheckpoint as error:
        raise CannotResume(str(error), resume='from the newest good checkpoint in a workdir: resume="auto"') from error
    except OSError as error:
        raise unreadable(path, error) from error


def folder_at(path: Path) -> Path:
    """Return the checkpoint folder for a path: the path itself or, for a workdir, its newest checkpoint, damaged or not."""
    refuse_link(path)
    if not disk.is_folder(path, follow=True):
        raise CannotResume(
            f"there is no folder {path} to resume from.",
            give='"auto", "must", "never", a workdir or a checkpoint folder',
        )
    resolved = Path(os.path.realpath(path))
    if is_like_a_checkpoint(resolved):
        return resolved
    for _, folder in reversed(places(workdir_of(resolved))):
        if not read_manifest(folder).is_of_exception:
            return folder
    raise CannotResume(f"there is no checkpoint in {path} to resume from.", give="the workdir of a run with checkpoints")


def read(folder: Path) -> Found:
    """Verify and read a checkpoint folder. Raise DamagedCheckpoint if it is damaged."""
    manifest = verified(folder)
    if unlisted := strays(folder, manifest):
        logger.warning("%s: %s", folder, unlisted)
    return Found(folder, manifest, read_state(folder, manifest.files, manifest.encryption))


def unreadable(path: Path, error: OSError) -> CannotResume:
    """Return the error for a checkpoint that cannot be read from disk."""
    where = f" ({error.filename})" if error.filename and os.fspath(error.filename) != os.fspath(path) else ""
    return CannotResume(
        f"{path} cannot be read: {error.strerror or error}{where}.",
        check="that the disk is mounted and you may read the files",
        start='over with resume="never"',
    )
