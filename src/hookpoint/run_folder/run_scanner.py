"""RunScanner: find run folders in a folder and its subfolders. A later scan reads only folders that have changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hookpoint.run_folder.run_folder import looks_like_a_run
from hookpoint.storage.checkpoint.layout import CHECKPOINTS, LANDSCAPE, PREVIOUS, TENSOR_DUMPS

LEVELS = 4
MAX_FOLDERS = 50_000  # maximum number of folders per scan; the scanned folder may be the root of a disk
NEVER = frozenset({CHECKPOINTS, TENSOR_DUMPS, LANDSCAPE, "tensorboard", "node_modules", "site-packages", "__pycache__"})
# A folder that changed less than two seconds ago is read again in the next scan, because a second change within this time may
# leave the folder's timestamp unchanged.
SETTLED_NS = 2 * 10**9


@dataclass(frozen=True, slots=True)
class _Listing:
    stamp: tuple[int, int, int]
    is_run: bool
    folders: list[str]


class RunScanner:
    """Find run folders in a folder and its subfolders. If the folder is itself a run folder, it is found too.

    Each folder is found only once. On each level, real folders are searched before symbolic links. Skips hidden and unreadable
    folders and, by default, earlier runs in previous/.
    """

    def __init__(self, folder: Path, *, levels: int = LEVELS, previous: bool = False) -> None:
        self._folder = os.fspath(folder)
        self._levels = levels
        self._skipped = NEVER if previous else NEVER | {PREVIOUS}
        self._listings: dict[str, _Listing] = {}

    def scan(self) -> Iterator[Path]:
        """Yield the run folders. Scanning a folder that has not changed takes one system call."""
        before, self._listings = self._listings, {}
        seen: set[tuple[int, int]] = set()
        level = [self._folder]
        for depth in range(self._levels + 1):
            deeper: list[str] = []
            for path in level:
                try:
                    status = os.stat(path)
                    if (status.st_dev, status.st_ino) in seen or len(seen) >= MAX_FOLDERS:
                        continue
                    seen.add((status.st_dev, status.st_ino))
                    stamp = status.st_dev, status.st_ino, status.st_mtime_ns
                    listing = before.get(path)
                    if listing is None or listing.stamp != stamp:
                        listing = self._list(path, stamp)
                    else:
                        self._listings[path] = listing
                except OSError:
                    continue
                if listing.is_run:
                    yield Path(path)
                if depth < self._levels:
                    deeper += listing.folders
            level = sorted(deeper, key=os.path.islink)

    def _list(self, path: str, stamp: tuple[int, int, int]) -> _Listing:
        with os.scandir(path) as entries:
            contents = sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))
        names = {entry.name for entry in contents}
        folders = [entry.path for entry in contents if entry.name not in self._skipped and _is_visible_folder(entry)]
        listing = _Listing(stamp, looks_like_a_run(path, names), folders)
        if time.time_ns() - stamp[2] > SETTLED_NS and (listing.is_run or CHECKPOINTS not in names):
            self._listings[path] = listing
        return listing


def _is_visible_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:  # the links form a loop
        return False
