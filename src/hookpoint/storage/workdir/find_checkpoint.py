"""Finding: which checkpoint a run goes on from."""

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

ANEW = 'anew with resume="never", which moves them aside'


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint to go on from, verified and read."""

    path: Path
    manifest: Manifest
    state: dict[str, Any]


def find(workdir: Path, resume: Resume) -> Found | None:
    """Return what a run goes on from: by "auto" and "must" the newest good checkpoint of the workdir, else that of a path."""
    if resume not in ("auto", "must"):
        return at_path(Path(resume))
    found = newest_good(workdir)
    if found is None and resume == "must":
        raise CannotResume(
            f"there is no checkpoint in {workdir} to go on from.", start='anew where there is none with resume="auto"'
        )
    return found


def newest_good(workdir: Path) -> Found | None:
    """Return the newest checkpoint that verifies, and move newer ones that do not aside; None where there are none at all.

    Where there are checkpoints and all are damaged, they stay where they are, and CannotResume is raised.
    """
    damaged = []
    for _, path in reversed(places(workdir)):
        try:
            if read_manifest(path).is_of_exception:
                logger.info("%s is passed over: it was saved when an exception ended the run", path)
                continue
            found = read(path)
        except DamagedCheckpoint as error:
            damaged.append((path, error))
        except OSError as error:
            raise unreadable(path, error) from error
        else:
            for damaged_one in damaged:
                quarantine.move_damaged(*damaged_one)
            return found
    if damaged:
        problems = "\n".join(f"  {error}" for _, error in damaged)
        raise CannotResume(
            f"all checkpoints in {checkpoints(workdir)} are damaged.\n{problems}", start=ANEW, restore="them from a backup"
        )
    return None


def at_path(path: Path) -> Found:
    """Return the checkpoint that a path leads to: its folder, or the newest of a workdir. It is that one or CannotResume."""
    try:
        folder = folder_at(path)
        return read(folder)
    except DamagedCheckpoint as error:
        raise CannotResume(str(error), resume='with "auto", for the newest good one of a workdir') from error
    except OSError as error:
        raise unreadable(path, error) from error


def folder_at(path: Path) -> Path:
    """Return the checkpoint folder that a path leads to."""
    refuse_link(path)
    if not disk.is_folder(path, follow=True):
        raise CannotResume(
            f"there is no folder {path} to go on from.", give='"auto", "must", "never", a workdir or the folder of a checkpoint'
        )
    resolved = Path(os.path.realpath(path))
    if is_like_a_checkpoint(resolved):
        return resolved
    workdir = resolved.parent if resolved.name == CHECKPOINTS else resolved
    for _, folder in reversed(places(workdir)):
        if not read_manifest(folder).is_of_exception:
            return folder
    raise CannotResume(f"there is no checkpoint in {path} to go on from.", give="the workdir of a run that has some")


def read(folder: Path) -> Found:
    """Return what is in a checkpoint folder, or raise DamagedCheckpoint."""
    manifest = verified(folder)
    if others := strays(folder, manifest):
        logger.warning("%s has files that are %s", folder, others)
    return Found(folder, manifest, read_state(folder, manifest.files))


def unreadable(path: Path, error: OSError) -> CannotResume:
    """Return the error for a checkpoint that the disk does not give."""
    where = f" ({error.filename})" if error.filename and os.fspath(error.filename) != os.fspath(path) else ""
    return CannotResume(
        f"{path} cannot be read: {error.strerror or error}{where}.",
        check="that the disk is there and the files are yours",
        start='anew with resume="never"',
    )
