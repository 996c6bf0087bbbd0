"""MediaCache: remember where the images and histograms of recently viewed runs are."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from hookpoint.run_folder._plain_file import open_plain
from hookpoint.run_folder.media.tensorboard_media import Medium, event_files_of, media_in

MAX_RUNS = 16
MAX_BYTES = 2**30  # limit for all files of a run together


@dataclass(slots=True)
class _File:
    """An event file: its id, its size, its modification time, the offset at which to continue reading, and its media."""

    file_id: tuple[int, int] = (0, 0)
    size: int = 0
    changed: int = 0
    offset: int = 0
    media: list[Medium] = field(default_factory=list)


class MediaCache:
    """Find the images and histograms of runs. When an event file has grown, only the added data is read.

    At most 1 GiB is read per run. The least recently used runs are removed from the cache. The methods are thread-safe.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[Path, dict[Path, _File]] = OrderedDict()
        self._lock = Lock()

    def media_of(self, run_folder: Path) -> list[Medium]:
        """Return a run's images and histograms, oldest first. Raises NoTensorBoard if tensorboard is not installed."""
        with self._lock:
            before = self._runs.pop(run_folder, {})
            files: dict[Path, _File] = {}
            left = MAX_BYTES
            for path in event_files_of(run_folder):
                try:
                    files[path] = file = _read(path, before.get(path), left)
                except OSError:
                    continue
                left -= file.size
            self._runs[run_folder] = files
            if len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)
            return [medium for file in files.values() for medium in file.media]


def _read(path: Path, known: _File | None, max_bytes: int) -> _File:
    """Read a file, and return its new state. Read only the added data, unless the file was replaced or rewritten."""
    status = os.stat(path)
    file_id, size, changed = (status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns
    if known is None or known.file_id != file_id or size < known.size or (size == known.size and changed != known.changed):
        known = _File(file_id)
    if (size, changed) != (known.size, known.changed) and known.offset < max_bytes:
        with open_plain(path) as file:
            file.seek(known.offset)
            found, known.offset = media_in(file, path, max_bytes - known.offset)
        known.media = [*known.media, *found]
    known.size, known.changed = size, changed
    return known
