"""Saved weights: read a checkpoint's weights to evaluate a model. No lock is needed, even while a run writes to the workdir.

The run may delete a checkpoint or replace a best-… folder while another process reads it. This does not count as damage.
Instead, `Gone` is raised, and the caller tries again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hookpoint.core.checkpoint.store import Resume
from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.checkpoint.checkpoint_folder import read_manifest, verified, verify_file
from hookpoint.storage.checkpoint.encryption import plain_source
from hookpoint.storage.checkpoint.layout import WEIGHTS, checkpoints
from hookpoint.storage.checkpoint.load_shards import filled
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.checkpoint.state_files import read_state
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir.find_checkpoint import Found, all_damaged, folder_at, search, unreadable

logger = logging.getLogger("hookpoint")

MODEL = "model"


class Gone(Exception):
    """A checkpoint was deleted or replaced while it was being read."""


def find(workdir: Path | None, resume: Resume, names: Collection[str]) -> Found | None:
    """Return the named parts of the newest valid checkpoint in a workdir, or of the checkpoint at the path `resume`.

    Returns None if `resume` is "never", or if it is "auto" and there is no checkpoint. Sharded tensors may be missing;
    `complete` loads them. If the newest checkpoint is damaged, a warning is logged, and the one before it is tried. Raises Gone
    if a checkpoint was deleted or replaced while it was being read. Raises CannotResume if a required checkpoint is missing, if
    no checkpoint is intact, if a file cannot be read, or if the checkpoint contains no model weights.
    """
    if resume == "never":
        return None
    if resume not in ("auto", "must"):
        return _at_path(Path(resume), names)
    found = None if workdir is None else _newest_good(workdir, names)
    if found is None and resume == "must":
        where = "there is no workdir for resume='must'" if workdir is None else f"there is no checkpoint in {workdir}"
        cure = "a workdir with a checkpoint, or the path of a checkpoint"
        raise CannotResume(f"{where}, so there are no weights to load.", give=cure)
    return found


def read(folder: Path, names: Collection[str]) -> Found:
    """Verify and return the named parts of a checkpoint. Raise Gone if the checkpoint was deleted or replaced.

    If only the model's weights are requested, nothing else is read. Raises DamagedCheckpoint if a file is damaged, and
    CannotResume if the checkpoint contains no model weights.
    """
    with _gone_if_changed(folder, None):
        manifest = read_manifest(folder)
    with _gone_if_changed(folder, manifest):
        return Found(folder, manifest, {"parts": _read_parts(names, folder, manifest)})


def complete(saved: Found, parts: Mapping[str, Any]) -> Found:
    """Load the sharded tensors that are missing from `saved`, and return the completed checkpoint.

    If a tensor is sharded in this run, only this rank's shard is loaded. Otherwise, the full tensor is loaded. Raises Gone if
    the checkpoint was deleted or replaced.
    """
    with _gone_if_changed(saved.path, saved.manifest):
        return replace(saved, state=filled(saved.state, saved.path, parts))


@contextmanager
def _gone_if_changed(folder: Path, manifest: Manifest | None) -> Iterator[None]:
    """Convert an error inside a `with` block to Gone if the folder was deleted or its manifest has changed."""
    try:
        yield
    except (DamagedCheckpoint, FileNotFoundError) as error:
        try:
            current = read_manifest(folder)
        except (DamagedCheckpoint, FileNotFoundError):
            current = None
        if not disk.is_folder(folder) or (manifest is not None and current not in (None, manifest)):
            raise Gone(folder) from error
        raise
    except OSError as error:
        raise unreadable(folder, error) from error


def _read_parts(names: Collection[str], folder: Path, manifest: Manifest) -> dict[str, Any]:
    if set(names) == {MODEL} and WEIGHTS in manifest.files:
        from hookpoint.storage.checkpoint.weights_file import read_weights

        verify_file(folder, WEIGHTS, manifest)
        return {MODEL: read_weights(plain_source(folder / WEIGHTS, manifest.encryption))}
    parts = read_state(folder, verified(folder, shards=False).files, manifest.encryption).get("parts", {})
    if MODEL not in parts:
        raise CannotResume(f"{folder} contains no model weights.", give="the workdir of a run with a model")
    return {name: parts[name] for name in names if name in parts}


def _at_path(path: Path, names: Collection[str]) -> Found:
    before = _names_near(path)
    try:
        return read(folder_at(path), names)
    except (DamagedCheckpoint, CannotResume) as error:
        hidden = any(path.name in name for name in before if name.startswith("."))  # a run is replacing a best-… folder
        if _names_near(path) != before or (hidden and not disk.is_folder(path, follow=True)):
            raise Gone(path) from error
        if isinstance(error, CannotResume):
            raise
        raise CannotResume(str(error), give="another checkpoint, or the workdir") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _names_near(path: Path) -> list[str]:
    """Return the names of the files in a folder, in its parent folder, and in its subfolder for checkpoints.

    If these names change between two calls, a run is writing files.
    """
    folders = [folder for folder in (path.parent, path, checkpoints(path)) if disk.is_folder(folder, follow=True)]
    return [name for folder in folders for name in disk.names(folder)]


def _newest_good(workdir: Path, names: Collection[str]) -> Found | None:
    found, damaged = search(workdir, partial(read, names=names))
    for path, error in damaged.items():
        if not disk.is_folder(path):
            raise Gone(path) from error
    if found is None and damaged:
        keep_current = 'the current weights of the model with resume="never"'
        raise all_damaged(workdir, damaged, restore="them from a backup", keep=keep_current)
    for error in damaged.values():
        logger.warning("%s It is skipped.", error)
    return found
