"""Format numbers, sizes, times and names for people."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from hookpoint.core.text.terminal import printable

LONGEST = 400  # characters of a text from a file


def shown(given: Any, longest: int = LONGEST) -> str:
    """Return a value from a file as one line of plain text, without control characters."""
    text = " ".join(str(given).split()) if not isinstance(given, float) else number(given)
    return printable(text if len(text) <= longest else f"{text[: longest - 1]}…")


def number(value: float) -> str:
    """Return a value with five digits.

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
    left = max(int(seconds), 0)
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0") or len(parts) == 1)


def moment(given: datetime | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time in the local time zone; "" for None."""
    return "" if given is None else given.astimezone().strftime(form)


def moment_of(given: Any) -> datetime | None:
    """Return a time from a file: seconds since 1970 or an ISO text; None if it is invalid."""
    try:
        found = datetime.fromisoformat(given) if isinstance(given, str) else datetime.fromtimestamp(given)
        return found.astimezone()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"
