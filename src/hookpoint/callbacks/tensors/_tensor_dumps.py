"""TensorDumps: files made of values that are still on their way, written beside the training."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from hookpoint.core.errors import BadArgument, BadLoop, CompileError
from hookpoint.storage.checkpoint.layout import SAFE, TENSOR_DUMPS, is_leftover
from hookpoint.storage.disk import disk
from hookpoint.storage.disk.fs_calls import perform

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

MOST_WAITING = 8  # files whose values are held in memory

# Makes files, by name; called on the thread that writes.
Make = Callable[[], Iterable[tuple[str, bytes]]]


class TensorDumps:
    """Write files to the folder tensor-dumps of the workdir, each whole or not at all, on a thread of its own.

    A file takes the place of one with its name. When too many wait to be written, `put` waits for the oldest. A file that
    cannot be written is said, once until one can be again, and left out; any other failure is raised on the training thread.
    """

    def __init__(self, owner: str, prefix: str) -> None:
        if not isinstance(prefix, str) or not SAFE.fullmatch(prefix):
            cures = {"give": "letters, digits and ._-, of which a letter or digit comes first"}
            raise BadArgument(f"{owner}(prefix={prefix!r}) is no name of a file.", **cures)
        self.owner = owner
        self.prefix = prefix
        self._folder: Path | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()
        self._is_failing = False

    def check(self, run: Run) -> None:
        """Refuse a run without a workdir, and two that would write to the same files: for on_setup."""
        if run.workdir is None:
            raise BadLoop(f"{self.owner} has nowhere to write to.", give='workdir="runs/name"')
        for entry in run.hooks.entries:
            other = getattr(entry.subject, "dumps", None)
            if isinstance(other, TensorDumps) and other is not self and other.prefix == self.prefix:
                cures = {"give": "one of them another prefix="}
                raise CompileError(f"{self.owner} and {entry.name} both write {self.prefix}-... files.", **cures)

    def open(self, run: Run, is_later: Callable[[str], bool]) -> None:
        """Get ready for a run. One that goes on from a checkpoint removes what was written later, which comes once more."""
        self.close()
        self._folder = Path(run.workdir) / TENSOR_DUMPS
        self._is_failing = False
        for name in disk.names(self._folder):
            if name.startswith(f".staging-{self.prefix}-") if is_leftover(name) else (run.resuming and is_later(name)):
                disk.remove(self._folder / name)

    def put(self, make: Make) -> None:
        """Have files made and written, when those before them are."""
        assert self._folder is not None
        self._look_at_done()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"hookpoint {self.owner}")
        self._waiting.append(self._thread.submit(self._write, self._folder, make))

    def wait(self) -> None:
        """Return when everything is on disk, or raise what went wrong."""
        while self._waiting:
            self._waiting.popleft().result()

    def close(self) -> None:
        """Write what is left, and end the thread."""
        thread, self._thread = self._thread, None
        try:
            self.wait()
        finally:
            self._waiting.clear()
            if thread is not None:
                thread.shutdown()

    def _look_at_done(self) -> None:
        while self._waiting and (len(self._waiting) >= MOST_WAITING or self._waiting[0].done()):
            self._waiting.popleft().result()

    def _write(self, folder: Path, make: Make) -> None:
        for name, content in make():
            try:
                disk.make_folder(folder)
                _replace(folder / name, content)
            except OSError as error:
                if not self._is_failing:
                    self._is_failing = True
                    logger.warning("%s could not write %s: %s; the run goes on without it", self.owner, name, error)
            else:
                self._is_failing = False


def _replace(path: Path, content: bytes) -> None:
    staged = path.with_name(disk.hidden("staging", path.name))
    try:
        disk.write(staged, content)
        perform(lambda: os.replace(staged, path), "replace", staged, target=os.fspath(path))
    except OSError:
        if disk.exists(staged):
            disk.remove(staged)
        raise
    disk.sync_folder(path.parent)
