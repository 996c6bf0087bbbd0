"""Children: real processes that start within milliseconds and can be killed at any time.

A server that has imported torch forks a child for each task, so a child does not wait for imports. A task is the name of a
function in one of the modules in this folder, with JSON arguments. When the child ends, a file contains the return value or
the exception that ended it; a killed child leaves no file.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

SECONDS = 250.0  # a child that takes longer hangs


@dataclass
class Child:
    """A process that runs one task. After a wait, `ended` is its exit code, negative for a signal."""

    server: Children
    pid: int
    folder: Path
    ended: int | None = None

    def wait(self, seconds: float = SECONDS, *, alone: bool = False) -> int:
        """Wait until it ends and return the exit code; after `seconds`, kill it and fail the test.

        Processes that it leaves behind, such as a loader's workers, are killed too, unless `alone`.
        """
        if self.ended is None:
            self.ended = self.server.ask(wait=self.pid, seconds=seconds, alone=alone)
            if self.ended is None:
                self.kill()
                raise AssertionError(f"process {self.pid} did not end within {seconds:g} s:\n{self.log}")
        return self.ended

    def kill(self, number: int = signal.SIGKILL, *, alone: bool = False) -> int:
        """Send a signal. A child that has ended ignores it: its pid stays reserved until it is waited for."""
        assert self.ended is None
        os.kill(self.pid, number)
        return self.wait(alone=alone) if number == signal.SIGKILL else 0

    @property
    def log(self) -> str:
        """Its output to stdout and stderr."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def returned(self) -> Any:
        """The return value of the task."""
        assert self.wait() == 0, f"exit code {self.ended}:\n{self.log}"
        return json.loads((self.folder / "returned").read_text())

    @property
    def raised(self) -> list[str]:
        """The classes of the exception that ended it, most specific first, or an empty list."""
        self.wait()
        path = self.folder / "raised"
        return json.loads(path.read_text()) if path.exists() else []


class Children:
    """A context manager that starts children. `folder` keeps their logs and return values."""

    def __init__(self, folder: Path, warm_python: Callable[[Path], TextIO]) -> None:
        self._folder = folder
        self._number = 0
        self._warm_python = warm_python

    def __enter__(self) -> Children:
        self._server = self._warm_python(Path(__file__))
        assert self._answer() == "ready"
        return self

    def __exit__(self, *error: object) -> None:
        self._server.close()  # ends the server, after all of its children

    def start(self, task: str, /, **arguments: Any) -> Child:
        """Start `module.function(**arguments)` in a new process."""
        self._number += 1
        folder = self._folder / f"child-{self._number}"
        folder.mkdir(parents=True)
        return Child(self, self.ask(task=task, arguments=arguments, folder=str(folder)), folder)

    def ask(self, **request: Any) -> Any:
        self._server.write(json.dumps(request) + "\n")
        self._server.flush()
        return self._answer()

    def _answer(self) -> Any:
        return json.loads(self._server.readline())


def serve() -> None:
    """Fork and wait as requested on stdin; when stdin closes, kill the remaining children."""
    importlib.import_module("subject")
    sys.modules["torch"].set_num_threads(1)
    gc.freeze()  # a collection would touch, and thus copy, everything that was imported
    print(json.dumps("ready"), flush=True)
    living: set[int] = set()
    try:
        for line in sys.stdin:
            print(json.dumps(_answer(json.loads(line), living)), flush=True)
    finally:
        for pid in living:
            os.kill(pid, signal.SIGKILL)
            _waited(pid, SECONDS, alone=False)


def _answer(request: dict[str, Any], living: set[int]) -> Any:
    if "task" in request:
        pid = os.fork()
        if pid == 0:
            _do(request)
        os.setpgid(pid, pid)  # also here: the child may be killed before its own call
        living.add(pid)
        return pid
    ended = _waited(request["wait"], request["seconds"], request["alone"])
    if ended is not None:
        living.discard(request["wait"])
    return ended


def _waited(pid: int, seconds: float, alone: bool) -> int | None:
    """Wait for a child. Before its pid is freed, kill the rest of its process group."""
    deadline = time.monotonic() + seconds
    while not _has_ended(pid):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)
    if not alone:
        with suppress(ProcessLookupError, PermissionError):  # if the group is empty
            os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended; its pid stays reserved."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)  # macOS before Python 3.13
    return shown.stdout.startswith("Z")


def _do(request: dict[str, Any]) -> None:
    """Run the task in the child and exit, as a script would."""
    code, folder = 1, Path(request["folder"])
    try:
        os.setpgid(0, 0)
        _redirect(folder / "log")
        module, _, function = request["task"].partition(".")
        returned = getattr(importlib.import_module(module), function)(**request["arguments"])
        (folder / "returned").write_text(json.dumps(returned))
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:
        traceback.print_exc()
        (folder / "raised").write_text(json.dumps([kind.__name__ for kind in type(error).__mro__]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: Path) -> None:
    nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, number in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(descriptor, number)


if __name__ == "__main__":
    serve()
