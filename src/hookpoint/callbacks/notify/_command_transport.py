"""CommandTransport: send a message by running a command."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from threading import Lock
from typing import IO

from hookpoint.callbacks.notify._command import Command, Value
from hookpoint.callbacks.notify._sender import SendFailed
from hookpoint.core.text.terminal import printable

MAX_OUTPUT = 200


class CommandTransport:
    """Insert the values of a message into a command and run the command. Kill it after `timeout_seconds`.

    The command receives no input, and its output is not shown. Errors name only the program, because its arguments may contain
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
        with _output_file() as output:
            try:
                process = self._start(arguments, output)
            except (OSError, ValueError) as error:  # ValueError: NUL in an argument
                reason = getattr(error, "strerror", None) or str(error)
                raise SendFailed(reason, f"{program} could not be started: {reason}") from None
            try:
                code = process.wait(self._timeout_seconds)
            except subprocess.TimeoutExpired:
                raise SendFailed("timeout", f"{program} was killed after {self._timeout_seconds:g} s") from None
            finally:
                _kill(process)
                self._process = None
            if code:
                raise SendFailed(f"code {code}", f"{program} exited with code {code}{_last_line(output)}")

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            process = self._process
        if process is not None:
            _kill(process)

    def _start(self, arguments: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._cancelled:
                raise OSError("cancelled")
            # The command runs in its own session: Ctrl-C does not reach it, and its whole process group can be killed.
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True
            )
            return self._process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that is still running, and its children."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()


def _output_file() -> IO[bytes]:
    """Return a temporary file for the output. A pipe that is not read would block the command."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return open(os.devnull, "r+b")


def _last_line(output: IO[bytes]) -> str:
    output.seek(max(output.seek(0, os.SEEK_END) - 4 * MAX_OUTPUT, 0))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return f": {printable(lines[-1].strip())[:MAX_OUTPUT]}" if lines else ""
