"""List a run's checkpoints with their sizes. Hard links are counted once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookpoint.storage.checkpoint.checkpoint_folder import UNREADABLE, problem_of, read_manifest
from hookpoint.storage.checkpoint.layout import Place
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.workdir.catalog import best_folders, places


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint folder or a best-… folder. If its manifest is invalid, `manifest` is None, and `problem` explains why.

    `size_bytes` is the size of all files in the folder. `own_bytes` does not count files that an earlier folder in the list
    also contains, as hard links.
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
        """Maps a tag such as `best-loss` to the measurement for which the checkpoint has this tag: metric, value and step."""
        return {} if self.manifest is None else dict(self.manifest.measured)

    @property
    def is_best(self) -> bool:
        """Whether this is a best-… folder."""
        return Place.of(self.path.name) is None


def checkpoints_of(workdir: Path) -> list[Listed]:
    """Return the checkpoints in a workdir, oldest first, followed by its best-… folders. Files are not verified."""
    seen: set[tuple[int, int]] = set()
    with suppress(OSError):
        return [_listed(path, seen) for path in (*(path for _, path in places(workdir)), *best_folders(workdir))]
    return []


def newest_step(workdir: Path) -> int | None:
    """Return the step at which the newest checkpoint was saved. The step is read from the name of the checkpoint's folder."""
    with suppress(OSError):
        return next((place.step for place, _ in reversed(places(workdir))), None)
    return None


def bytes_of(path: Path, seen: set[tuple[int, int]]) -> int:
    """Return the total size of the files at a path that are not in `seen`, and add them to `seen`. Skip unreadable files."""
    sizes = {(status.st_dev, status.st_ino): status.st_size for status in files_in(path)}
    total = sum(size for key, size in sizes.items() if key not in seen)
    seen.update(sizes)
    return total


def files_in(path: Path) -> Iterator[os.stat_result]:
    """Yield the `stat` result of the file at a path, or of every file in the folder at that path. Do not follow links."""
    try:
        status = os.lstat(path)
    except OSError:
        return
    if not stat.S_ISDIR(status.st_mode):
        yield status
        return
    for folder, folders, names in os.walk(path):
        for name in (*names, *(name for name in folders if os.path.islink(os.path.join(folder, name)))):
            with suppress(OSError):
                yield os.lstat(os.path.join(folder, name))


def _listed(path: Path, seen: set[tuple[int, int]]) -> Listed:
    manifest, problem = None, ""
    try:
        manifest = read_manifest(path)
    except UNREADABLE as error:
        problem = problem_of(path, error)
    return Listed(path, manifest, problem, bytes_of(path, set()), bytes_of(path, seen))
