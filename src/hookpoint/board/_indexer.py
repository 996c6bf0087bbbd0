"""Indexer: index long files one at a time, each in a separate process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock, Thread

from hookpoint.run_folder.curve_index import default_cache, index_path, prune
from hookpoint.run_folder.index_process import IndexProcess

Progress = Callable[[int], None]
Done = Callable[[str], None]


class Indexer:
    """A queue of files to index.

    Indexes are stored in the user's cache folder or, if it is read-only, in a temporary folder.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._temporary: TemporaryDirectory[str] | None = None
        self._cache = self._usable(cache or default_cache())
        self._queue: SimpleQueue[tuple[Path, Progress, Done] | None] = SimpleQueue()
        self._lock = Lock()
        self._thread: Thread | None = None
        self._process: IndexProcess | None = None
        self._is_stopped = False

    def index_path(self, path: Path) -> Path:
        """Return the path of a file's index, whether it exists yet or not."""
        return index_path(self._cache, path)

    def request(self, path: Path, progress: Progress, done: Done) -> None:
        """Add a file to the queue.

        `progress` is called with the number of bytes read so far. `done` is called at the end, with an empty string on success
        or with the reason for the failure.
        """
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._work, name="hookpoint-indexer", daemon=True)
                self._thread.start()
        self._queue.put((path, progress, done))

    def stop(self) -> None:
        """Stop the indexing process and the thread that handles the queue. Return when both have ended."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                self._process.stop()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _work(self) -> None:
        while (task := self._queue.get()) is not None and not self._is_stopped:
            path, progress, done = task
            try:
                with self._lock:
                    if self._is_stopped:
                        return
                    self._process = IndexProcess(path, self.index_path(path))
                problem = self._process.wait(progress)
            except OSError as error:
                problem = str(error)
            done(problem)

    def _usable(self, cache: Path) -> Path:
        try:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(cache, os.W_OK):
                prune(cache)
                return cache
        except OSError:
            pass
        self._temporary = TemporaryDirectory(prefix="hookpoint-board-")
        return Path(self._temporary.name)
