"""TensorDumper and TensorDumps: write tensors to files on a background thread."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.extras import optional
from hookpoint.callbacks._shared.workdir import rank_suffix, require_workdir
from hookpoint.callbacks.tensors._tensor_reader import Names, TensorReader
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument, CompileError
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run
from hookpoint.storage.checkpoint.layout import SAFE, TENSOR_DUMPS, is_leftover
from hookpoint.storage.disk import disk

MAX_WAITING = 8  # the maximum number of pending writes, because each one keeps its values in memory

# A function that returns the name and content of each file. It is called on the background thread.
MakeFiles = Callable[[], Iterable[tuple[str, bytes]]]


class TensorDumps:
    """Write files to the workdir's tensor-dumps folder atomically, on a background thread.

    An existing file with the same name is replaced. If too many files are waiting to be written, `put` waits for the oldest
    one. If a file cannot be written, it is skipped. In a series of failures, only the first is logged. Other errors are raised
    on the training thread.
    """

    def __init__(self, owner: str, prefix: str) -> None:
        if not isinstance(prefix, str) or not SAFE.fullmatch(prefix):
            raise BadArgument(
                f"{owner}: prefix={prefix!r} is not a file name.",
                give="letters, digits and ._-, starting with a letter or digit",
            )
        self.owner = owner
        self.prefix = prefix
        self._folder: Path | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()
        self._is_failing = False

    def open(self, run: Run, is_later: Callable[[str], bool]) -> None:
        """Prepare for a run. If the run resumes, first remove files that are newer than its checkpoint."""
        self.close()
        self._folder = Path(run.workdir) / TENSOR_DUMPS
        self._is_failing = False
        for name in disk.names(self._folder):
            if name.startswith(f".staging-{self.prefix}-") if is_leftover(name) else (run.resuming and is_later(name)):
                disk.remove(self._folder / name)

    def put(self, make_files: MakeFiles) -> None:
        """Queue files to be built and written on the background thread."""
        assert self._folder is not None
        while self._waiting and (len(self._waiting) >= MAX_WAITING or self._waiting[0].done()):
            self._waiting.popleft().result()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"hookpoint {self.owner}")
        self._waiting.append(self._thread.submit(self._write, self._folder, make_files))

    def wait(self) -> None:
        """Wait until all files are on disk; raise any error that occurred."""
        while self._waiting:
            self._waiting.popleft().result()

    def close(self) -> None:
        """Write the remaining files, and end the thread."""
        thread, self._thread = self._thread, None
        try:
            self.wait()
        finally:
            self._waiting.clear()
            if thread is not None:
                thread.shutdown()

    def _write(self, folder: Path, make_files: MakeFiles) -> None:
        for name, content in make_files():
            try:
                disk.make_folder(folder)
                disk.replace(folder / name, content)
            except OSError as error:
                if not self._is_failing:
                    self._is_failing = True
                    logger.warning("%s could not write %s: %s; the run continues without it", self.owner, name, error)
            else:
                self._is_failing = False


class TensorDumper(TensorReader):
    """Write tensors to files named `<prefix>...<file_type>`. Subclasses build the files.

    `name_pattern` matches a file's name after the prefix, and captures its `epoch` or `step`. `package` is imported lazily. If
    the package is missing, the callback does nothing and logs one warning.
    """

    name_pattern: ClassVar[str]
    file_type: ClassVar[str]
    package: ClassVar[dict[str, str]]

    def __init__(self, names: Names, prefix: str, **options: Unpack[Options]) -> None:
        super().__init__(names, **options)
        self.dumps = TensorDumps(self.owner, prefix)
        self._is_enabled = False

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        require_workdir(self.owner, run)
        prefix = self.dumps.prefix
        for entry in run.hooks.entries:
            other = entry.subject
            if isinstance(other, TensorDumper) and other is not self and other.dumps.prefix == prefix:
                give = "one of them another prefix="
                raise CompileError(f"{self.owner} and {entry.name} both write {prefix}-... files.", give=give)

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._is_enabled = optional(self.owner, **self.package) is not None
        pattern = re.compile(re.escape(self.dumps.prefix) + self.name_pattern + re.escape(self.file_end(run)))
        now = {"epoch": run.epoch, "step": run.step}

        def is_later(name: str) -> bool:
            match = pattern.fullmatch(name)
            return match is not None and any(int(value or 0) > now[clock] for clock, value in match.groupdict().items())

        self.dumps.open(run, is_later)

    def on_trigger(self, run: Run) -> None:
        values = self.read(run) if self._is_enabled else None
        if values is not None:
            self.dump(run, values)

    def dump(self, run: Run, values: dict[str, Any]) -> None:
        """Pass `self.dumps.put` a function that builds files from these values."""
        raise NotImplementedError

    def file_end(self, run: Run) -> str:
        return rank_suffix(run) + self.file_type

    def on_run_end(self) -> None:
        super().on_run_end()
        self.dumps.close()

    def state_dict(self) -> dict[str, Any]:
        self.dumps.wait()
        return {}
