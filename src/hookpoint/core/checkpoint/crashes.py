"""Crashes: count how often a run has failed with the same error at the same point in training, across restarts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hookpoint.core.errors import CannotResume
from hookpoint.core.schedule.moment import Moment

MAX_ROWS = 20  # the maximum number of crash kinds to record
MAX_LETTERS = 200
INSTALLED = (sys.prefix, sys.base_prefix)


class Crashes:
    """Count the exceptions that end a run. Refuse to restart the run after `limit` crashes of the same kind.

    Two crashes are of the same kind if they happen at the same epoch, iteration and step, with the same type of exception.

    The count is reset when the run gets past the point of the crash, or when the program is edited. Kills, signals and stops
    do not count, so a run can be preempted any number of times. A limit of None or 0 means no limit.

    >>> crashes = Crashes(2)
    >>> crashes.add(Moment(1, 7, 7), "ValueError", "no such file", "12:00")
    1
    >>> crashes.add(Moment(1, 7, 7), "ValueError", "no such file", "12:05")
    2
    >>> crashes.reached(Moment(1, 8, 8))
    >>> crashes.rows
    []
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit or None
        self.rows: list[dict[str, Any]] = []

    def load(self, facts: Mapping[str, Any]) -> None:
        """Load the recorded crashes. Ignore invalid records, because anyone can edit the file."""
        self.rows = _rows(facts.get("crashes"))[-MAX_ROWS:]

    def check(self, name: str, resume: str) -> None:
        """Raise CannotResume if the run has crashed too often in the same way.

        `resume` is the argument that starts the run anyway, such as 'resume="never"'. The error message suggests it.
        """
        if self.limit is None or all(row["count"] < self.limit for row in self.rows):
            return
        shown = "".join(f"\n  {_shown(row)}" for row in self.rows)
        count = max(row["count"] for row in self.rows)
        raise CannotResume(
            f"{name} was not restarted: it has failed {count} times with the same error at the same point in training.{shown}",
            fix=f"the cause (editing the code resets the count), or start with {resume}, which also resets the count",
            allow="more crashes with max_crashes=, or any number with max_crashes=None",
        )

    def reached(self, moment: Moment) -> None:
        """Forget crashes that happened earlier in training than `moment`, because the run has not crashed there again."""
        self.rows = [row for row in self.rows if not moment.is_after(Moment.of(row))]

    def add(self, moment: Moment, kind: str, message: str, when: str) -> int:
        """Record a crash. Return how many crashes of this kind have been recorded."""
        self.reached(moment)
        same = [row for row in self.rows if row["type"] == kind and Moment.of(row).is_same(moment)]
        count: int = 1 + sum(row["count"] for row in same)
        new = {**moment.fields(), "type": kind, "text": _first_line(message), "count": count, "last": when}
        self.rows = [*(row for row in self.rows if row not in same), new][-MAX_ROWS:]
        return count


def is_edited_since(records: Any) -> bool:
    """Return whether one of the program's files has changed since the last of these crashes.

    Ignore Python's own files and installed packages.
    """
    times = [seconds for row in _rows(records) if (seconds := _seconds(row["last"])) is not None]
    files = {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    return bool(times) and any(_changed(file) >= max(times) + 1 for file in files if not file.startswith(INSTALLED))


def _rows(records: Any) -> list[dict[str, Any]]:
    return [row for row in map(_row, records) if row is not None] if isinstance(records, list) else []


def _changed(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0


def _seconds(when: str) -> float | None:
    try:
        return datetime.fromisoformat(when).timestamp()
    except ValueError:
        return None


def _row(record: Any) -> dict[str, Any] | None:
    try:
        count = record["count"]
        if type(count) is not int or count < 1:
            return None
        texts = {name: _first_line(str(record.get(name) or "")) for name in ("text", "last")}
        return {**Moment.of(record).fields(), "type": _first_line(str(record["type"])), **texts, "count": count}
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None


def _shown(row: Mapping[str, Any]) -> str:
    error = row["type"] + (f": {row['text']}" if row["text"] else "")
    last = f", last {row['last']}" if row["last"] else ""
    return f"{row['count']} x epoch {row['epoch']}, iteration {row['iteration']}, step {row['step']}: {error}{last}"


def _first_line(text: str) -> str:
    line = (text.strip().splitlines() or [""])[0]
    return line if len(line) <= MAX_LETTERS else line[: MAX_LETTERS - 1] + "…"
