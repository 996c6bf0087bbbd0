"""HyperFile: lines of `name:value` that a person edits while a program reads them."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MOST_BYTES = 64 * 1024
MOST_SHOWN = 40
FRESH_SECONDS = 2.0  # how long after a change a last line without an end may be half of one
SETTLE_SECONDS = 0.05  # how long such a file has to stay as it is to be taken for whole
ATTEMPTS = 3
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that says what a setting is to be."""

    number: int
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a line, or with the file where `line` is 0; `content` is what stays the same when the line moves."""

    line: int
    reason: str
    content: str = ""

    @property
    def key(self) -> str:
        """What tells a problem that is new from one that was seen."""
        return self.content or self.reason


@dataclass(slots=True)
class Reading:
    """What a file said when it was read, and what is wrong with the rest."""

    lines: list[Line] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


class HyperFile:
    """Read such a file as data, whatever is in it or in its place.

    Only a regular file is read, of the user who runs this, of at most 64 KiB, and never through a symbolic link. Nothing here
    raises or waits for what others do. A file that was changed a moment ago and does not end with a line break may be half
    written: it is looked at again after 50 milliseconds, and a last line that makes no sense is left for the next time.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._settled: bytes | None = None

    def read(self) -> Reading:
        """Return what the file says now; one that is not there says nothing."""
        try:
            content, is_fresh = self._load()
            for _ in range(ATTEMPTS):
                if not content or content.endswith(b"\n") or not is_fresh or content == self._settled:
                    break
                time.sleep(SETTLE_SECONDS)
                before, (content, is_fresh) = content, self._load()
                if content == before:
                    self._settled = content
        except FileNotFoundError:
            return Reading()
        except OSError as error:
            return Reading(problems=[Problem(0, _why(error))])
        except Refused as refused:
            return Reading(problems=[Problem(0, str(refused))])
        may_be_half = is_fresh and not content.endswith(b"\n")
        if may_be_half and content != self._settled:  # it is being written all the time
            content = content[: content.rfind(b"\n") + 1]
            may_be_half = False
        return parse(content, may_be_half=may_be_half)

    def _load(self) -> tuple[bytes, bool]:
        """Return the content, and whether it was changed a moment ago."""
        _refuse_unless_own_file(os.lstat(self.path))  # before it is opened: opening a device may do something
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            _refuse_unless_own_file(found)
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise Refused(f"is larger than {MOST_BYTES // 1024} KiB")
        return content, time.time() - found.st_mtime < FRESH_SECONDS


class Refused(Exception):
    """The file is none that is read."""


def _refuse_unless_own_file(found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise Refused("is a symbolic link, which is not followed")
    if not stat.S_ISREG(found.st_mode):
        raise Refused("is no regular file")
    if found.st_uid != os.geteuid():
        raise Refused(f"belongs to user {found.st_uid}, not to {os.geteuid()}, who trains")
    if found.st_size > MOST_BYTES:
        raise Refused(f"is larger than {MOST_BYTES // 1024} KiB")


def _why(error: OSError) -> str:
    return "is a symbolic link, which is not followed" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"


def parse(content: bytes, *, may_be_half: bool = False) -> Reading:
    """Return what the lines say. `may_be_half` leaves a last line that makes no sense alone: it may not be whole yet.

    >>> reading = parse(b"# by hand\\nlearning_rate: 0.01\\nmomentum=0.9\\n")
    >>> reading.lines, reading.problems[0].reason
    ([Line(number=2, name='learning_rate', value=0.01)], "has no colon: 'momentum=0.9'; write name:value")
    """
    reading = Reading()
    pieces = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, found in _meaning(pieces):
        if isinstance(found, Line):
            earlier = next((line.number for line in reading.lines if line.name == found.name), None)
            if earlier is not None:
                reason = f"sets {_short(found.name)} again, after line {earlier}; the last one that is good counts"
                reading.problems.append(Problem(number, reason, f"{found.name} again"))
            reading.lines.append(found)
        elif not (may_be_half and number == len(pieces)):
            reading.problems.append(found)
    return reading


def _meaning(pieces: list[bytes]) -> Iterator[tuple[int, Line | Problem]]:
    for number, piece in enumerate(pieces, 1):
        try:
            text = piece.decode().partition("#")[0].strip()
        except UnicodeDecodeError:
            yield number, Problem(number, f"is no text: {_short(piece)}", _short(piece))
            continue
        if text:
            yield number, _line(number, text)


def _line(number: int, text: str) -> Line | Problem:
    name, colon, written = (part.strip() for part in text.rpartition(":"))
    if not colon or not name:
        return Problem(number, f"has no {'name' if colon else 'colon'}: {_short(text)}; write name:value", _short(text))
    value = float(written) if NUMBER.fullmatch(written) else math.nan
    is_lost = value == 0 and re.search("[1-9]", written.lower().partition("e")[0])  # 1e-999
    if not math.isfinite(value) or is_lost:
        return Problem(number, f"has no finite number for {_short(name)}: {_short(written)}", _short(text))
    return Line(number, name, value)


def _short(words: str | bytes) -> str:
    """Return the beginning, with nothing in it that a terminal would act on."""
    return ascii(words[:MOST_SHOWN]) + ("…" if len(words) > MOST_SHOWN else "")
