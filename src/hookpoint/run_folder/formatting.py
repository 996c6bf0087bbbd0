"""Format numbers, sizes, times and names for display."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from hookpoint.core.text.terminal import printable

MAX_CHARACTERS = 400  # maximum length of a text from a file, in characters


def shown(value: Any, longest: int = MAX_CHARACTERS) -> str:
    """Return a value from a file as one line of plain text, without control characters."""
    text = " ".join(str(value).split()) if not isinstance(value, float) else number(value)
    return printable(text if len(text) <= longest else f"{text[: longest - 1]}…")


def number(value: float) -> str:
    """Return a value with five significant digits.

    >>> number(0.123456789), number(12.0), number(float("nan"))
    ('0.12346', '12', 'nan')
    """
    return f"{value:.5g}"


def size(count: int) -> str:
    """Return a size in bytes with its unit.

    >>> size(17), size(28_156), size(3_221_225_472)
    ('17 B', '27.5 KiB', '3.0 GiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min(int(math.log2(count) // 10), 5)
    return f"{count / 1024**power:.1f} {' KMGTP'[power]}iB"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units.

    >>> duration(0.4), duration(75), duration(7_500), duration(200_000)
    ('0s', '1m 15s', '2h 5m', '2d 7h')
    """
    if seconds is None or not math.isfinite(seconds):
        return ""
    rest = max(int(seconds), 0)
    units: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or units or unit == "s":
            units.append(f"{count}{unit}")
    return " ".join(text for text in units[:2] if not text.startswith("0") or len(units) == 1)


def moment(time: datetime | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time in the local time zone, or "" for None."""
    return "" if time is None else time.astimezone().strftime(form)


def moment_of(value: Any) -> datetime | None:
    """Parse a time from a file: seconds since 1970, or ISO 8601. Return None if it is invalid."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else datetime.fromtimestamp(value)
        return time.astimezone()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the singular or plural.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"
