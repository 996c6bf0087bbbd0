"""The terminal: how to print a line there while something else is being drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

Show = Callable[[str], None]

_drawing: list[Show] = []
_silent: list[object] = []


def say(line: str) -> None:
    """Print a line to stderr; where a progress bar is drawn there, above it. Any thread may call it.

    Of the processes of a run only the chief prints. A line that nobody can read, as the stream is closed or the terminal is
    gone, is dropped: no training ends for it.
    """
    if _silent:
        return
    with suppress(OSError, ValueError):
        if _drawing:
            _drawing[-1](line)
        else:
            print(line, file=sys.stderr, flush=True)


def printable(name: str) -> str:
    """Return a name without characters that would move the cursor or change colours."""
    return "".join(character if character.isprintable() else "?" for character in name)


def claim(show: Show) -> None:
    """Have lines printed by this function, until `release`: whoever draws on the terminal knows how not to be in the way."""
    _drawing.append(show)


def release(show: Show) -> None:
    """End a claim; ending one that is not there does nothing."""
    if show in _drawing:
        _drawing.remove(show)


def be_silent(who: object, *, silent: bool) -> None:
    """Have nothing printed while one of those who asked for it is there: a run that is not the chief's."""
    if who in _silent:
        _silent.remove(who)
    if silent:
        _silent.append(who)


def is_claimed() -> bool:
    return bool(_drawing)


def forget_claims() -> None:
    """Drop all claims: in a forked process nobody draws."""
    _drawing.clear()
