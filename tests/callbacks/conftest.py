"""A real terminal: programs run in a pseudo-terminal, and what they write is parsed as a screen would show it.

Also a clock that moves only when told to, and fixtures for runs that only need losses or learning rates.
"""

from __future__ import annotations

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
from functools import partial

import pytest
import torch

from hookpoint.callbacks._shared import extras

CONTROL = re.compile(r"\x1b\[(\??)(\d*(?:;\d+)*)([A-Za-z])")


@dataclass
class Terminal:
    """What a program left on the screen and everything it wrote."""

    lines: list[str]
    frames: list[str]
    cursor_is_shown: bool
    written: str
    stdout: str
    returncode: int

    @property
    def wrapped(self) -> list[str]:
        """The drawings of the bar that wrapped."""
        return [frame for frame in self.frames if "\n" in frame]


def screen(written: str, columns: int) -> tuple[list[str], bool]:
    """Return the lines of the screen and whether the cursor is shown. Understands the control sequences that rich writes."""
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
    """Run a program whose stderr is a terminal, and its stdout unless piped; `signals` are sent when it prints "ready"."""

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
        except OSError:  # Linux raises when the other end is closed
            piece = b""
        if not piece:
            os.close(terminal)
            return written.decode()
        written += piece
        if signals and b"ready" in written:
            signals -= 1
            process.send_signal(signal.SIGINT)


class Clock:
    """A clock that only moves when something takes time."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def nothing_was_logged():
    """Clear the record of warnings, so that each test sees those that are logged once."""
    extras.warn_once.cache_clear()


@pytest.fixture
def scores():
    """Return `scores(*values)`: the rows that `train_on_disk` logs for these scores."""
    return lambda *values: [{"score": value} for value in values]


@pytest.fixture
def hooked_modules():
    """Return `hooked_modules(model)`: the names of the modules that still have forward hooks."""
    return lambda model: [name for name, module in model.named_modules() if module._forward_hooks]


@pytest.fixture
def train_on_disk(train, disk):
    """Train the run on the disk for as many epochs as there are rows; each row is logged in its epoch."""
    return partial(train, store=disk)


@pytest.fixture
def train_on_losses(train):
    """Train with these losses in each epoch: `run.loss` is set to them, or with `how="log"` they are logged."""
    steps = {"set": lambda run, loss: setattr(run, "loss", loss), "log": lambda run, loss: run.log(loss=loss)}

    def go(callbacks, losses, *, how="set", **given):
        return train(callbacks, batches=losses, step=steps.get(how), **given)

    return go


@pytest.fixture
def sgd():
    """Make an optimizer with a group for each of the rates, by default a single group with 1.0."""

    def make(*rates, **options):
        groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates or (1.0,)]
        return torch.optim.SGD(groups, **options)

    return make


@pytest.fixture
def rates_of_steps(train, sgd):
    """Train and return the learning rate of each step. With `stop_at`, the run stops at that step."""

    def go(callbacks, *, batches=1, optimizer=None, stop_at=None, **given):
        seen, optimizer = [], optimizer or sgd()

        def step(run, batch):
            seen.append(run.hyper["lr"])
            optimizer.step()
            if run.step == stop_at:
                run.stop("cut")

        train(callbacks, batches=batches, step=step, optimizer=optimizer, **given)
        return seen

    return go


@pytest.fixture
def rates_of_epochs(train, sgd):
    """Run an epoch for each value of the metric (None: nothing is logged) and return the learning rate after each epoch."""

    def go(callbacks, values, *, metric="val_loss", optimizer=None, **given):
        seen, optimizer = [], optimizer or sgd()
        epoch_end = lambda run: seen.append(run.hyper["lr"])  # noqa: E731
        rows = [{} if value is None else {metric: value} for value in values]
        train(callbacks, rows, batches=None, epoch_end=epoch_end, optimizer=optimizer, **given)
        return [*seen[1:], optimizer.param_groups[0]["lr"]] if seen else []

    return go


@pytest.fixture
def train_timed(train, clock):
    """Train with steps that take `seconds` of the clock; 1000 seconds pass after the last step of each epoch."""

    def go(callbacks, *, batches=4, seconds=0.5, **given):
        def wait(seconds):
            clock.now += seconds

        options = {"step": lambda run, batch: wait(seconds), "epoch_end": lambda run: wait(1000), "log_every": 2}
        return train(callbacks, batches=batches, **{**options, **given})

    return go
