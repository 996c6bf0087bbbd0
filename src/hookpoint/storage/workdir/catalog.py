"""Catalog: list the checkpoints in a workdir."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.checkpoint.checkpoint_folder import read_manifest
from hookpoint.storage.checkpoint.layout import BEST, Place, checkpoints
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.disk import disk


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint. `manifest` is None if the manifest is missing or invalid."""

    path: Path
    place: Place
    manifest: Manifest | None


def places(workdir: Path) -> list[tuple[Place, Path]]:
    """Return the checkpoint folders in a workdir, oldest first.

    A symbolic link that has the name of a checkpoint is included, but its target is never read.
    """
    folder = checkpoints(workdir)
    named = [(place, folder / name) for name in disk.names(folder) if (place := Place.of(name)) is not None]
    return sorted((place, path) for place, path in named if _is_folder_or_link(path))


def entries(workdir: Path) -> list[Entry]:
    """Return the checkpoints in a workdir with their manifests, oldest first. Files are not verified."""
    return [Entry(path, place, manifest_of(path)) for place, path in places(workdir)]


def best_folders(workdir: Path) -> Iterator[Path]:
    """Yield the best-… folders in a workdir.

    A symbolic link that has a best-… name is included, but its target is never read.
    """
    folder = checkpoints(workdir)
    for name in disk.names(folder):
        if name.startswith(BEST) and _is_folder_or_link(folder / name):
            yield folder / name


def _is_folder_or_link(path: Path) -> bool:
    return disk.is_folder(path) or disk.is_link(path)


def manifest_of(path: Path) -> Manifest | None:
    """Return a checkpoint folder's manifest, or None if it is missing or invalid."""
    try:
        return read_manifest(path)
    except (DamagedCheckpoint, CannotResume):
        return None
