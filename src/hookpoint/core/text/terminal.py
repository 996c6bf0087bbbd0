"""Print lines to the terminal, even while a progress bar is shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

Show = Callable[[str], None]

_drawing: list[Show] = []
_silent: list[object] = []


def say(line: str) -> None:
    """Print a line to stderr, above the progress bar if there is one. Any thread may call this.

    Only the chief of a run prints. If the stream is closed or the terminal is gone, the line is dropped.
    """
    if _silent:
        return
    with suppress(OSError, ValueError):
        if _drawing:
            _drawing[-1](line)
        else:
            print(line, file=sys.stderr, flush=True)


def say_from_signal_handler(line: str) -> None:
    """Print a line to stderr as `say` does, but without buffers, which the interrupted code may be writing to."""
    if _silent:
        return
    with suppress(OSError, ValueError, AttributeError):  # AttributeError: sys.stderr is None
        stream = sys.stderr.fileno()
        start = "\n" if os.isatty(stream) else ""  # in a terminal, the cursor is after ^C or a progress bar
        os.write(stream, f"{start}{line}\n".encode())


def printable(name: str) -> str:
    """Return a name without characters that would move the cursor or change colours."""
    return "".join(character if character.isprintable() else "?" for character in name)


def few(names: Sequence[str], limit: int) -> str:
    """Return the first `limit` names as text. If there are more names, the text says how many more.

    >>> few(["weight", "bias", "scale"], 2), few([], 2)
    ('weight, bias and 1 more', '')
    """
    return ", ".join(map(printable, names[:limit])) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def claim(show: Show) -> None:
    """Print lines with this function until `release` is called. A progress bar uses this to print lines above the bar."""
    _drawing.append(show)


def release(show: Show) -> None:
    """Undo `claim` for this function. Do nothing if it has no claim."""
    if show in _drawing:
        _drawing.remove(show)


def be_silent(owner: object, *, silent: bool) -> None:
    """Set whether an owner, such as a run on a rank other than the chief, is silent. If any owner is silent, print nothing."""
    if owner in _silent:
        _silent.remove(owner)
    if silent:
        _silent.append(owner)


def is_claimed() -> bool:
    return bool(_drawing)


def forget_claims() -> None:
    """Drop all claims. Called in a forked process."""
    _drawing.clear()
