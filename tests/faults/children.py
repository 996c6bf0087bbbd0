"""Children: real processes that are started in a few milliseconds, and can be killed at any moment.

A server imports torch once and forks a child for each task, so that a child starts where an import would still be reading
files. A task is a function of one of the modules in this folder, by name, with arguments that JSON has. What it returns, or the
exception that ended it, is in a file when the child ends; a child that was killed leaves none.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IMPORTED_ONCE = ("subject", "safetensors.torch", "torch._dynamo")  # the last is what a first optimizer imports
SECONDS = 60.0  # that no child here should take, on a machine with other things to do


@dataclass
class Child:
    """A process that does one task. `ended` is its exit code once it was waited for; that of a signal is negative."""

    server: Children
    pid: int
    folder: Path
    ended: int | None = None

    def wait(self, seconds: float = SECONDS) -> int:
        """Wait for its end, and return the exit code; one that does not end is killed, which fails the test."""
        if self.ended is None:
            self.ended = self.server.ask(wait=self.pid, seconds=seconds)
            if self.ended is None:
                self.kill()
                raise AssertionError(f"process {self.pid} did not end within {seconds:g} s:\n{self.log}")
        return self.ended

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send a signal. To a child that has ended it does nothing: its number is taken until it is waited for."""
        assert self.ended is None
        os.kill(self.pid, number)
        return self.wait() if number == signal.SIGKILL else 0

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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def __enter__(self) -> Children:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
        )
        assert self._answer() == "ready"
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # which ends it, after all of its children
        self._process.stdout.close()
        self._process.wait()

    def start(self, task: str, /, **arguments: Any) -> Child:
        """Start `module.function(**arguments)` in a process of its own."""
        self._number += 1
        folder = self._folder / f"child-{self._number}"
        folder.mkdir(parents=True)
        return Child(self, self.ask(task=task, arguments=arguments, folder=str(folder)), folder)

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def serve() -> None:
    """Fork and wait as stdin says; when it ends, kill what is left."""
    for module in IMPORTED_ONCE:
        importlib.import_module(module)
    sys.modules["torch"].set_num_threads(1)
    print(json.dumps("ready"), flush=True)
    living = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "task" in request:
            pid = os.fork()
            if pid == 0:
                _do(request)
            living.add(pid)
            answer: Any = pid
        else:
            answer = _waited(request["wait"], request["seconds"])
            if answer is not None:
                living.discard(request["wait"])
        print(json.dumps(answer), flush=True)
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _waited(pid: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    return None


def _do(request: dict[str, Any]) -> None:
    """Be a child: do the task and end, as a script would."""
    code, folder = 1, Path(request["folder"])
    try:
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
