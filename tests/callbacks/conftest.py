"""A real terminal for tests: programs run in a pseudo-terminal, and what they write is read as a screen would show it.

And a disk for savers: a store that keeps checkpoints in memory, and deletes them by the rules they came with.
"""

from __future__ import annotations

import copy
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from hookpoint.core.loop import Loop
from hookpoint.core.store import Checkpoint, Kept, Saved

CONTROL = re.compile(r"\x1b\[(\??)(\d*(?:;\d+)*)([A-Za-z])")


@dataclass
class Terminal:
    """What a program left on the screen, and everything it wrote."""

    lines: list[str]
    frames: list[str]
    cursor_is_shown: bool
    written: str
    stdout: str
    returncode: int

    @property
    def wrapped(self) -> list[str]:
        """The drawings of the bar that took more than one line."""
        return [frame for frame in self.frames if "\n" in frame]


def screen(written: str, columns: int) -> tuple[list[str], bool]:
    """Return the lines of a screen, and whether the cursor is shown: enough of a terminal for what rich writes."""
    lines, row, column, shown = [[]], 0, 0, True
    position = 0
    while position < len(written):
        control = CONTROL.match(written, position)
        if control:
            position = control.end()
            private, number, what = control.groups()
            if what == "K":
                assert number == "2"
                lines[row] = []
            elif what == "A":
                row -= int(number or 1)
            elif private and number == "25":
                shown = what == "h"
            else:
                assert what == "m", control[0]
            continue
        character = written[position]
        position += 1
        if character == "\r":
            column = 0
        elif character == "\n":
            row += 1
        else:
            if column == columns:
                row, column = row + 1, 0
            while len(lines) <= row:
                lines.append([])
            line = lines[row]
            line.extend(" " * (column + 1 - len(line)))
            line[column] = character
            column += 1
        while len(lines) <= row:
            lines.append([])
    return ["".join(line).rstrip() for line in lines], shown


def drawings(written: str) -> list[str]:
    """Return each drawing of the bar, without colours."""
    plain = re.sub(r"\x1b\[[\d;]*m|\x1b\[\?25[lh]", "", written)
    return [frame for frame in re.split(r"\r\x1b\[2K|\r\n", plain) if re.search(r"epoch \d+(/\d+)? .*\d+/\d+|batches", frame)]


@pytest.fixture
def in_terminal(tmp_path) -> Callable[..., Terminal]:
    """Run a program whose stderr, and unless piped its stdout, is a terminal; `signals` are sent as it prints "ready"."""

    def run(program: str, *, columns: int = 80, pipe_stdout: bool = False, signals: int = 0, **environ: str) -> Terminal:
        path = tmp_path / "program.py"
        path.write_text(program)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(path)],
            stdin=theirs,
            stdout=subprocess.PIPE if pipe_stdout else theirs,
            stderr=theirs,
            env={**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environ},
        )
        os.close(theirs)
        written = _read(ours, process, signals)
        stdout = process.stdout.read().decode() if process.stdout is not None else ""
        process.communicate()
        lines, shown = screen(written, columns)
        return Terminal(lines, drawings(written), shown, written, stdout, process.returncode)

    return run


def _read(terminal: int, process: subprocess.Popen[bytes], signals: int) -> str:
    written = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other end is closed
            piece = b""
        if not piece:
            os.close(terminal)
            return written.decode()
        written += piece
        if signals and b"ready" in written:
            signals -= 1
            process.send_signal(signal.SIGINT)


class Disk:
    """A store that outlives its runs. `saved` has (step, tags) of each checkpoint, `kept` the steps that are left of a tag."""

    def __init__(self):
        self.saved, self.background, self.states, self.fails = [], [], {}, []
        self._kept = {}

    def kept(self, tag):
        return [one.step for one in self._kept.get(tag, ())]

    def open(self, resume, identity):
        return Checkpoint("disk/newest", copy.deepcopy(self.states[self.saved[-1][0]])) if self.saved else None

    def write(self, state, *, step, elapsed, request):
        if self.fails and self.fails.pop(0):
            raise OSError("disk is full")
        self.saved.append((step, list(request.tags)))
        self.background.append(request.in_background)
        self.states[step] = copy.deepcopy(state)
        for tag, keep in request.tags.items():
            all_of_tag = [*self._kept.get(tag, ()), Kept(f"step-{step}", step, elapsed)]
            self._kept[tag] = list(keep(all_of_tag)) if keep is not None else all_of_tag
        return Saved(f"disk/{step}", step, list(request.tags))

    def check(self, state): ...

    def collect(self, *, wait=False):
        return []

    def close(self): ...


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def train(disk):
    """Bring the run on the disk to as many epochs as there are rows: what each epoch logs. Each has three steps."""

    def go(callbacks, rows, **given):
        with Loop(callbacks, **{"store": disk, **given}) as run:
            for epoch in run.epochs(len(rows)):
                for _ in run.batches(range(3)):
                    pass
                run.log(rows[epoch - 1])
        return run

    return go
