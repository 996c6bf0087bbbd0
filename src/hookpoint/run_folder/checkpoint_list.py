"""What is in the checkpoints/ of a run, with sizes. Files with two names are counted once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.checkpoint.checkpoint_folder import read_manifest
from hookpoint.storage.checkpoint.layout import Place
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.workdir.catalog import best_folders, places


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint or best-… folder. Its manifest is None, with the reason, where there is none that makes sense.

    `size_bytes` is that of its files, `own_bytes` without those that an earlier one of the list has too.
    """

    path: Path
    manifest: Manifest | None
    problem: str
    size_bytes: int
    own_bytes: int

    @property
    def step(self) -> int | None:
        if self.manifest is not None:
            return self.manifest.step
        place = Place.of(self.path.name)
        return None if place is None else place.step

    @property
    def tags(self) -> tuple[str, ...]:
        return () if self.manifest is None else self.manifest.tags

    @property
    def measured(self) -> dict[str, Any]:
        """The values that it was saved for, by tag, as its manifest has them."""
        return {} if self.manifest is None else dict(self.manifest.measured)

    @property
    def is_best(self) -> bool:
        """Whether it is a best-… folder, and not the checkpoint of a step."""
        return Place.of(self.path.name) is None


def checkpoints_of(workdir: Path) -> list[Listed]:
    """Return the checkpoints of a workdir, the oldest first, then its best-… folders. Their files are not verified."""
    seen: set[tuple[int, int]] = set()
    return [_listed(path, seen) for path in _folders(workdir)]


def newest_step(workdir: Path) -> int | None:
    """Return the step of the newest checkpoint by its name alone."""
    try:
        found = places(workdir)
    except OSError:
        return None
    return found[-1][0].step if found else None


def bytes_of(path: Path, seen: set[tuple[int, int]]) -> int:
    """Return how much there is in a folder, or a file, that was not seen yet; what cannot be read counts nothing."""
    total = 0
    for status in files_in(path):
        key = status.st_dev, status.st_ino
        if key not in seen:
            seen.add(key)
            total += status.st_size
    return total


def files_in(path: Path) -> Iterator[os.stat_result]:
    """Yield the status of every file in a folder, or of the file at a path. Links are followed nowhere."""
    try:
        found = os.lstat(path)
    except OSError:
        return
    if not stat.S_ISDIR(found.st_mode):
        yield found
        return
    for folder, folders, names in os.walk(path):
        for name in (*names, *(one for one in folders if os.path.islink(os.path.join(folder, one)))):
            try:
                yield os.lstat(os.path.join(folder, name))
            except OSError:
                continue


def _folders(workdir: Path) -> Iterable[Path]:
    try:
        return [*(path for _, path in places(workdir)), *best_folders(workdir)]
    except OSError:
        return []


def _listed(path: Path, seen: set[tuple[int, int]]) -> Listed:
    size_bytes, own_bytes = bytes_of(path, set()), bytes_of(path, seen)
    try:
        return Listed(path, read_manifest(path), "", size_bytes, own_bytes)
    except (DamagedCheckpoint, CannotResume) as error:
        problem = str(error).splitlines()[0].removeprefix(f"{path} is ").rstrip(".")
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    return Listed(path, None, problem, size_bytes, own_bytes)
