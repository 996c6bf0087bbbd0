"""Gloo threads: wait for them before the interpreter exits."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

NAME = "pt_gloo_runloop"
TASKS = Path("/proc/self/task")
SECONDS = 5.0
LOOKS = 3


def let_rest(seconds: float = SECONDS) -> None:
    """Wait up to `seconds` until all gloo threads sleep.

    A thread reports an operation as done before it releases its tensors, which needs the GIL. If the interpreter exits in
    between, Python ends the thread inside C++ and the process aborts. A destroyed group has no threads, but the model often
    keeps its group alive. If the system does not report thread states, return at once.
    """
    deadline, calm = time.monotonic() + seconds, 0
    while calm < LOOKS and time.monotonic() < deadline:
        time.sleep(0.001)  # releases the GIL, which the threads may be waiting for
        calm = calm + 1 if all(state == "S" for state in states()) else 0


def states() -> list[str]:
    """Return the state of each gloo thread, in the letters of Linux: R is running or runnable, S is sleeping."""
    found = []
    for task in TASKS.glob("*/stat"):
        with suppress(OSError):  # the thread has ended
            name, _, facts = task.read_text().partition("(")[2].rpartition(")")
            found += [facts.split()[0]] if name == NAME else []
    return found
