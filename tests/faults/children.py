"""Children: real processes that are started in a few milliseconds, and can be killed at any moment.

A server, which has imported torch, forks a child for each task, so that a child starts where an import would still be reading
files. A task is a function of one of the modules in this folder, by name, with arguments that JSON has. What it returns, or the
exception that ended it, is in a file when the child ends; a child that was killed leaves none.
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

SECONDS = 250.0  # a child that takes longer hangs, even on a busy machine


@dataclass
class Child:
    """A process that does one task. `ended` is its exit code once it was waited for; that of a signal is negative."""

    server: Children
    pid: int
    folder: Path
    ended: int | None = None

    def wait(self, seconds: float = SECONDS, *, alone: bool = False) -> int:
        """Wait for its end, and return the exit code; one that does not end is killed, which fails the test.

        Processes that it has started and left behind, such as a loader's workers, end with it, unless it ends `alone`.
        """
        if self.ended is None:
            self.ended = self.server.ask(wait=self.pid, seconds=seconds, alone=alone)
            if self.ended is None:
                self.kill()
                raise AssertionError(f"process {self.pid} did not end within {seconds:g} s:\n{self.log}")
        return self.ended

    def kill(self, number: int = signal.SIGKILL, *, alone: bool = False) -> int:
        """Send a signal. To a child that has ended it does nothing: its number is taken until it is waited for."""
        assert self.ended is None
        os.kill(self.pid, number)
        return self.wait(alone=alone) if number == signal.SIGKILL else 0

    @property
    def log(self) -> str:
        """What it has written to stdout and stderr."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def returned(self) -> Any:
        """What the task returned."""
        assert self.wait() == 0, f"exit code {self.ended}:\n{self.log}"
        return json.loads((self.folder / "returned").read_text())

    @property
    def raised(self) -> list[str]:
        """The classes of the exception that ended it, the most special first, or nothing."""
        self.wait()
        path = self.folder / "raised"
        return json.loads(path.read_text()) if path.exists() else []


class Children:
    """Start children. `folder` keeps their logs and what they return. For `with`."""

    def __init__(self, folder: Path, warm_python: Callable[[Path], TextIO]) -> None:
        self._folder = folder
        self._number = 0
        self._warm_python = warm_python

    def __enter__(self) -> Children:
        self._server = self._warm_python(Path(__file__))
        assert self._answer() == "ready"
        return self

    def __exit__(self, *error: object) -> None:
        self._server.close()  # which ends it, after all of its children

    def start(self, task: str, /, **arguments: Any) -> Child:
        """Start `module.function(**arguments)` in a process of its own."""
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
    """Fork and wait as stdin says; when it ends, kill what is left."""
    importlib.import_module("subject")
    sys.modules["torch"].set_num_threads(1)
    gc.freeze()  # a collection would touch, and thus copy, all that was imported
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
        os.setpgid(pid, pid)  # here too: it may be killed before it gets there
        living.add(pid)
        return pid
    ended = _waited(request["wait"], request["seconds"], request["alone"])
    if ended is not None:
        living.discard(request["wait"])
    return ended


def _waited(pid: int, seconds: float, alone: bool) -> int | None:
    """Wait for a child. Before its number is free again, whatever is left of its group is killed."""
    deadline = time.monotonic() + seconds
    while not _has_ended(pid):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)
    if not alone:
        with suppress(ProcessLookupError, PermissionError):  # where nobody is left
            os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _has_ended(pid: int) -> bool:
    """Say whether a child has ended; its number stays taken."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)  # macOS before Python 3.13
    return shown.stdout.startswith("Z")


def _do(request: dict[str, Any]) -> None:
    """Be a child: do the task and end, as a script would."""
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
