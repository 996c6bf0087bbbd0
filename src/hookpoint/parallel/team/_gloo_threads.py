"""Gloo's threads: they come to rest before the interpreter ends."""

from __future__ import annotations

import time
from pathlib import Path

NAME = "pt_gloo_runloop"
TASKS = Path("/proc/self/task")
SECONDS = 5.0
LOOKS = 3


def let_rest(seconds: float = SECONDS) -> None:
    """Wait until no thread of gloo is at work, but for those that wait for another process; not for ever.

    Such a thread tells that an operation is over before it lets go of its tensors, for which it needs the interpreter. If that
    is ending by then, Python ends the thread inside of C++, and the process aborts. A group that is gone has no threads any
    more; but who has the model often has the group, too. Where the system does not say what threads do, nothing is waited for.
    """
    until, calm = time.monotonic() + seconds, 0
    while calm < LOOKS and time.monotonic() < until:
        time.sleep(0.001)  # without the interpreter's lock, which is what they may be waiting for
        calm = calm + 1 if all(state == "S" for state in states()) else 0


def states() -> list[str]:
    """Return what each thread of gloo does, in the letters of Linux: R runs or would like to, S sleeps."""
    found = []
    for task in TASKS.glob("*/stat"):
        try:
            _, _, rest = task.read_text().partition("(")
        except OSError:  # it has ended
            continue
        name, _, facts = rest.rpartition(")")
        if name == NAME:
            found.append(facts.split()[0])
    return found
