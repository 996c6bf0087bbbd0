"""Saved weights: read the weights of a checkpoint to evaluate a model, without a lock, also while a run writes to the workdir.

That run may delete a checkpoint while it is read, or replace a best-… folder. That is not damage: the caller tries again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookpoint.core.checkpoint.store import Resume
from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.checkpoint.checkpoint_folder import read_manifest, verified, verify_file
from hookpoint.storage.checkpoint.layout import checkpoints
from hookpoint.storage.checkpoint.load_shards import filled
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.checkpoint.state_files import read_state
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir.catalog import places
from hookpoint.storage.workdir.find_checkpoint import folder_at, unreadable

logger = logging.getLogger("hookpoint")

WEIGHTS, MODEL = "model.safetensors", "model"


class Gone(Exception):
    """A checkpoint was deleted or replaced while it was read."""


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """The state of some parts of a checkpoint. Sharded tensors may be missing."""

    path: Path
    manifest: Manifest
    parts: Mapping[str, Any]


def find(workdir: Path | None, resume: Resume, names: Collection[str]) -> SavedWeights | None:
    """Return these parts of the newest good checkpoint, or of the one at a path; None if there is none.

    Damaged checkpoints are logged and skipped. Raises CannotResume like a run that resumes, and Gone.
    """
    if resume == "never":
        return None
    if resume not in ("auto", "must"):
        return _at_path(Path(resume), names)
    found = None if workdir is None else _newest_good(workdir, names)
    if found is None and resume == "must":
        where = "resume='must' without a workdir: there" if workdir is None else f"there is no checkpoint in {workdir}: there"
        raise CannotResume(f"{where} are no weights to load.", give="the workdir of a run that has saved some, or a path")
    return found


def read(folder: Path, names: Collection[str], manifest: Manifest | None = None) -> SavedWeights:
    """Verify and return these parts of a checkpoint. Raise Gone if it was deleted or replaced.

    If only the model's weights are requested, nothing else is read. Raises DamagedCheckpoint, or CannotResume without weights.
    """
    made = manifest

    def work() -> SavedWeights:
        nonlocal made
        found = read_manifest(folder)
        made = found if made is None else made
        if found != made:
            raise Gone(folder)
        return SavedWeights(folder, found, _parts(folder, found, names))

    return _unless_gone(folder, work, lambda: made)


def complete(saved: SavedWeights, parts: Mapping[str, Any]) -> SavedWeights:
    """Return the weights with sharded tensors, each with the layout of this rank; or raise Gone."""

    def work() -> SavedWeights:
        state = filled({"parts": dict(saved.parts)}, saved.path, parts)
        return SavedWeights(saved.path, saved.manifest, state["parts"])

    return _unless_gone(saved.path, work, lambda: saved.manifest)


def _unless_gone(folder: Path, work: Callable[[], SavedWeights], made: Callable[[], Manifest | None]) -> SavedWeights:
    try:
        return work()
    except (DamagedCheckpoint, FileNotFoundError) as error:
        try:
            there = read_manifest(folder)
        except (DamagedCheckpoint, FileNotFoundError):
            there = None
        if not disk.is_folder(folder) or (made() is not None and there is not None and there != made()):
            raise Gone(folder) from error
        raise
    except OSError as error:
        raise unreadable(folder, error) from error


def _parts(folder: Path, manifest: Manifest, names: Collection[str]) -> dict[str, Any]:
    if set(names) == {MODEL} and WEIGHTS in manifest.files:
        from hookpoint.storage.checkpoint.weights_file import read_weights

        verify_file(folder, WEIGHTS, manifest)
        return {MODEL: read_weights(folder / WEIGHTS)}
    parts = read_state(folder, verified(folder, shards=False).files).get("parts", {})
    if MODEL not in parts:
        raise CannotResume(f"{folder} contains no model weights.", give="the workdir of a run with a model")
    return {name: parts[name] for name in names if name in parts}


def _at_path(path: Path, names: Collection[str]) -> SavedWeights:
    before = _beside(path)
    try:
        return read(folder_at(path), names)
    except (DamagedCheckpoint, CannotResume) as error:
        hidden = any(path.name in name for name in before if name.startswith("."))  # a best-… folder is being replaced
        if _beside(path) != before or (hidden and not disk.is_folder(path, follow=True)):
            raise Gone(path) from error
        if isinstance(error, CannotResume):
            raise
        raise CannotResume(str(error), give="another checkpoint, or the workdir") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _beside(path: Path) -> list[str]:
    """Return the names in and beside a path, to detect a run that writes there."""
    folders = [folder for folder in (path.parent, path, checkpoints(path)) if disk.is_folder(folder, follow=True)]
    return [name for folder in folders for name in disk.names(folder)]


def _newest_good(workdir: Path, names: Collection[str]) -> SavedWeights | None:
    damaged: list[DamagedCheckpoint] = []
    for _, path in reversed(places(workdir)):
        try:
            if read_manifest(path).is_of_exception:
                continue
            found = read(path, names)
        except DamagedCheckpoint as error:
            if not disk.is_folder(path):
                raise Gone(path) from error
            damaged.append(error)
        else:
            for problem in damaged:
                logger.warning("%s It is skipped.", problem)
            return found
    if damaged:
        problems = "\n".join(f"  {error}" for error in damaged)
        raise CannotResume(
            f"all checkpoints in {os.fspath(checkpoints(workdir))} are damaged.\n{problems}",
            restore="them from a backup",
            keep='or the current weights of the model with resume="never"',
        )
    return None
