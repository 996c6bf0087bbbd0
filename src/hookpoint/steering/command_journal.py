"""CommandJournal: journal.jsonl, a file of commands that a resumed run replays. A command is on disk before it is applied."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hookpoint.core.errors import BadControlFile
from hookpoint.core.text.plain_values import plain
from hookpoint.steering._safe_file import read_bytes

NAME = "journal.jsonl"
MAX_BYTES = 64 * 2**20
APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A command, and the position in training at which it was applied.

    `number` counts a run's entries from 1. `iteration`, `step` and `epochs` are the run's clocks at that position.
    `epochs` is the number of completed epochs. If the command was applied after the last iteration of an epoch, `epochs` shows
    whether the epoch had already ended.
    """

    number: int
    iteration: int
    step: int
    epochs: int
    id: str
    do: str
    args: Mapping[str, Any]
    by: str = ""
    time: str = ""

    def encoded(self) -> dict[str, Any]:
        """Return the entry as a JSON object, for its line in the file."""
        order = {"id": self.id, "do": self.do, "args": dict(self.args), "by": self.by}
        places = {name: getattr(self, name) for name in ("number", "iteration", "step", "epochs", "time")}
        return {**places, "order": order}

    @classmethod
    def parsed(cls, content: Mapping[str, Any]) -> JournalEntry:
        """Return the entry from a line's JSON object. Raise KeyError or TypeError if it is invalid."""
        order = content["order"]
        number, iteration, step, epochs = (int(content[name]) for name in ("number", "iteration", "step", "epochs"))
        if not isinstance(order["args"], dict):
            raise TypeError("args must be an object")
        texts = str(order["id"]), str(order["do"])
        return cls(number, iteration, step, epochs, *texts, order["args"], str(order["by"]), str(content["time"]))


class CommandJournal:
    """The journal in an open control folder.

    If the process is killed while it writes a line, the incomplete line is ignored, because its command was not applied. If
    writing a line fails, the line is removed. If the line cannot be removed, the next line marks the entry as
    forgotten.
    """

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._failed: list[dict[str, Any]] = []  # "forget" lines for entries that could not be removed

    def entries(self) -> list[JournalEntry]:
        """Return the entries in order, without forgotten entries."""
        entries: dict[int, JournalEntry] = {}
        for content in self._lines():
            try:
                if "forget" in content:
                    entries.pop(content["forget"], None)
                else:
                    entry = JournalEntry.parsed(content)
                    entries[entry.number] = entry
            except (KeyError, TypeError, ValueError):
                continue
        return [entries[number] for number in sorted(entries)]

    def last_number(self) -> int:
        """Return the highest number of all entries, including forgotten entries, or 0 if the journal is empty."""
        numbers = [content.get("number") for content in self._lines()]
        return max((number for number in numbers if type(number) is int), default=0)

    def append(self, entry: JournalEntry) -> None:
        """Add an entry. It is on disk when this method returns."""
        self._append(entry.encoded())

    def forget(self, number: int, *, by: str = "", reason: str = "") -> None:
        """Forget an entry: the next resume does not replay it. Other processes may call this only while no run is training."""
        self._append({"forget": number, "by": by, "reason": reason, "time": now()})

    def set_aside(self) -> None:
        """Rename the journal of an earlier run. Call this if the current run does not resume the earlier run."""
        aside = f"journal-{datetime.now():%Y%m%d-%H%M%S}.jsonl"
        os.rename(NAME, aside, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def _lines(self) -> list[dict[str, Any]]:
        try:
            lines = read_bytes(self._folder, NAME, MAX_BYTES).split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(content, dict):
                found.append(content)
        return found

    def _append(self, content: Mapping[str, Any]) -> None:
        data = b"".join(json.dumps(plain(one), allow_nan=False).encode() + b"\n" for one in (*self._failed, content))
        descriptor = os.open(NAME, APPEND, 0o600, dir_fd=self._folder)
        try:
            size = os.fstat(descriptor).st_size
            if size + len(data) > MAX_BYTES:
                raise BadControlFile(f"{NAME} is full: it has {size} bytes.", start='a new run with resume="never"')
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # end the line that is incomplete because the process was killed or the disk was full
            try:
                if os.write(descriptor, data) != len(data):
                    raise OSError(f"{NAME} was only partly written")
                os.fsync(descriptor)
                if not size:
                    os.fsync(self._folder)
            except BaseException:
                self._take_back(descriptor, size, content)
                raise
        finally:
            os.close(descriptor)
        self._failed = []

    def _take_back(self, descriptor: int, size: int, content: Mapping[str, Any]) -> None:
        """Remove a line that could not be written or synced. The command is refused, so a resume must not replay it."""
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        except OSError:
            if "number" in content:
                forget = {"forget": content["number"], "by": "", "reason": "it was not written to the journal", "time": now()}
                self._failed.append(forget)  # the next `_append` writes this line again, because the write below may fail
                with suppress(OSError):
                    os.write(descriptor, b"\n" + json.dumps(forget).encode() + b"\n")


def now() -> str:
    """Return the local time in ISO 8601 format, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")
