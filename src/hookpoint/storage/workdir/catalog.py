"""Catalog: the checkpoints that are in a workdir."""

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
    """A checkpoint by its name, and its manifest, or None if there is none that makes sense."""

    path: Path
    place: Place
    manifest: Manifest | None


def places(workdir: Path) -> list[tuple[Place, Path]]:
    """Return every checkpoint folder of a workdir, the oldest first; also a link of such a name, which nobody reads."""
    folder = checkpoints(workdir)
    found = [(place, folder / name) for name in disk.names(folder) if (place := Place.of(name)) is not None]
    return sorted((place, path) for place, path in found if _may_be_listed(path))


def entries(workdir: Path) -> list[Entry]:
    """Return every checkpoint of a workdir with its manifest, the oldest first. Their files are not verified."""
    return [Entry(path, place, _manifest(path)) for place, path in places(workdir)]


def best_folders(workdir: Path) -> Iterator[Path]:
    """Yield the best-… folders of a workdir; also a link of such a name, which nobody reads."""
    folder = checkpoints(workdir)
    for name in disk.names(folder):
        if name.startswith(BEST) and _may_be_listed(folder / name):
            yield folder / name


def _may_be_listed(path: Path) -> bool:
    return disk.is_folder(path) or disk.is_link(path)


def _manifest(path: Path) -> Manifest | None:
    try:
        return read_manifest(path)
    except (DamagedCheckpoint, CannotResume):
        return None
