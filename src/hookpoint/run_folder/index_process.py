"""Index process: read a long file in a separate process, so that the server stays responsive and uses little memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from hookpoint.run_folder.curve_index import load_index, save_index
from hookpoint.run_folder.curve_reader import CurveReader

PROGRESS_SECONDS = 0.25
NICE = 5
MAX_ERROR_BYTES = 4096
_PACKAGES = str(Path(__file__).parents[2])
_START = "import sys; sys.path.insert(0, sys.argv[1]); from hookpoint.run_folder.index_process import main; main(*sys.argv[2:])"


class IndexProcess:
    """A process that reads a whole file and writes an index of the file to `target`. `stop` ends the process early."""

    def __init__(self, path: str | os.PathLike[str], target: Path) -> None:
        command = [sys.executable, "-P", "-c", _START, _PACKAGES, os.fspath(path), os.fspath(target)]
        quiet = subprocess.DEVNULL
        self._errors = TemporaryFile()  # noqa: SIM115 - closed by wait
        self._process = subprocess.Popen(
            command, stdin=quiet, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )  # a new session, so that Ctrl-C reaches only the server, which then ends this process

    def wait(self, progress: Callable[[int], None]) -> str:
        """Call `progress` with the number of bytes read so far, until the process ends.

        Return an empty string if the process has written the index. Otherwise, return the reason why the process failed.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):
                progress(int(line))
        self._process.stdout.close()
        code = self._process.wait()
        with self._errors as errors:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - MAX_ERROR_BYTES))
            lines = errors.read().decode(errors="replace").strip().splitlines()
        return "" if code == 0 else lines[-1] if lines else f"exit code {code}"

    def stop(self) -> None:
        """End the process. `wait` then returns the exit code as the reason."""
        with suppress(OSError):
            self._process.kill()


def main(path: str, target: str) -> None:
    """Read a file and write its index. Print the position at intervals, and exit if the output is no longer read."""
    with suppress(OSError, AttributeError):
        os.nice(NICE)
    gc.disable()  # there are no reference cycles here, and searching for them takes a tenth of the run time
    reader = CurveReader(path)
    load_index(reader, Path(target))
    while reader.read(PROGRESS_SECONDS):
        print(reader.position, flush=True)  # raises BrokenPipeError if the server has ended
    save_index(reader, Path(target))
