"""File names in the mirror of a run folder, and functions that list the files to upload and the mirrored checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hookpoint.storage.checkpoint.layout import CHECKPOINTS, JOURNAL, PREVIOUS, Place
from hookpoint.storage.checkpoint.manifest import Manifest, parse_manifest
from hookpoint.storage.remote.remote_folder import RemoteFolder

HEARTBEAT = "mirror.json"  # contains the time when the mirror was last updated
# If the run resumes from an earlier checkpoint, the manifests of later checkpoints are renamed to this name. Without a
# manifest.json, no run resumes from them.
RETIRED = "retired-manifest.json"


def log_files(workdir: Path) -> Iterator[str]:
    """Yield the relative paths of a run's files in the workdir, except checkpoints, earlier runs, hidden files and links."""
    if os.path.isfile(workdir / JOURNAL):
        yield JOURNAL
    for folder, folders, names in os.walk(workdir):
        is_top = Path(folder) == workdir
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not (is_top and name in (CHECKPOINTS, PREVIOUS))
        )
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not name.startswith(".") and name != HEARTBEAT and os.path.isfile(path) and not os.path.islink(path):
                yield os.path.relpath(path, workdir)


def is_log(path: str) -> bool:
    """Return whether a file in a mirror is a log. `path` is relative to the mirror.

    `log_files` selects the files to upload by the same rules.
    """
    first, *others = path.split("/")
    is_visible = not any(name.startswith(".") for name in (first, *others))
    return path == JOURNAL or (is_visible and path != HEARTBEAT and not (others and first in (CHECKPOINTS, PREVIOUS)))


def offered(remote: RemoteFolder) -> list[tuple[Place, str]]:
    """Return the checkpoint folders in the mirror, oldest first, including incomplete ones."""
    named = [(Place.of(name), name) for name in remote.names(CHECKPOINTS)]
    return sorted((place, name) for place, name in named if place is not None)


def remote_manifest(remote: RemoteFolder, name: str) -> tuple[Manifest, bytes] | None:
    """Return the manifest of a checkpoint in the mirror, or None if the checkpoint is incomplete.

    Raises DamagedCheckpoint if the manifest is invalid.
    """
    data = remote.read(f"{CHECKPOINTS}/{name}/manifest.json")
    return None if data is None else (parse_manifest(data, f"{remote.url}/{CHECKPOINTS}/{name}"), data)
