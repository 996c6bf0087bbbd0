"""CommandWay: send a message by running a command."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from threading import Lock
from typing import IO

from hookpoint.callbacks.notify._command import Command
from hookpoint.callbacks.notify._send_queue import SendFailed
from hookpoint.callbacks.notify._template import Value
from hookpoint.core.text.terminal import printable

MOST_SAID = 200


class CommandWay:
    """Run a command, filled with values, for so many seconds at most; what is left of it then is killed.

    It gets no input, and what it prints is not shown. Messages about it name the program alone, as its arguments may hold
    passwords.
    """

    def __init__(self, command: Command, timeout_seconds: float) -> None:
        self._command = command
        self._timeout_seconds = timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False
        self._lock = Lock()

    def send(self, message: Mapping[str, Value]) -> None:
        program = self._command.program
        try:
            arguments = self._command.arguments(message)
        except ValueError as error:
            raise SendFailed(str(error), f"{program} was not run: {error}") from None
        with _somewhere() as said:
            try:
                process = self._start(arguments, said)
            except (OSError, ValueError) as error:  # ValueError: a NUL in a name
                reason = getattr(error, "strerror", None) or str(error)
                raise SendFailed(reason, f"{program} could not be started: {reason}") from None
            try:
                code = process.wait(self._timeout_seconds)
            except subprocess.TimeoutExpired:
                raise SendFailed("timeout", f"{program} was ended after {self._timeout_seconds:g} s") from None
            finally:
                _kill(process)
                self._process = None
            if code:
                raise SendFailed(f"code {code}", f"{program} ended with {code}{_last_line(said)}")

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            process = self._process
        if process is not None:
            _kill(process)

    def _start(self, arguments: list[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._cancelled:
                raise OSError("cancelled")
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,  # so that Ctrl-C is not for it, and all of it can be killed
            )
            return self._process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that has not ended, and what it has started."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()


def _somewhere() -> IO[bytes]:
    """Return a file without a name: a pipe that nobody reads would hold a command up."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return open(os.devnull, "r+b")


def _last_line(said: IO[bytes]) -> str:
    said.seek(max(said.seek(0, os.SEEK_END) - 4 * MOST_SAID, 0))
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {printable(lines[-1])[:MOST_SAID]}" if lines else ""
