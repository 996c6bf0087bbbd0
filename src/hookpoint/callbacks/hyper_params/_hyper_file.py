"""HyperFile: a file of `name:value` lines, such as `hyper.txt`. The user can edit the file during the run."""

from __future__ import annotations

import errno
import math
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hookpoint.callbacks._shared.workdir import file_problem

MAX_BYTES = 64 * 1024
MAX_SHOWN = 40
FRESH_SECONDS = 2.0  # for this long after a change, a last line without a line break may be incomplete
SETTLE_SECONDS = 0.05  # a file that does not change for this long counts as complete
ATTEMPTS = 3
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


class Line(NamedTuple):
    """A line that sets a value."""

    number: int
    name: str
    value: float


class Problem(NamedTuple):
    """A problem with a line, or with the whole file if `line` is 0.

    `content` helps to recognize the problem when the file is read again.
    """

    line: int
    reason: str
    content: str = ""

    @property
    def key(self) -> str:
        """A string by which the problem is recognized when the file is read again."""
        return self.content or self.reason


@dataclass(slots=True)
class Reading:
    """The valid lines of a file, and the problems found in the file."""

    lines: list[Line] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


class HyperFile:
    """Read a file of `name:value` lines safely, no matter what it contains.

    The file must be a regular file of at most 64 KiB, not a symbolic link, and must belong to the user who runs this process.
    Reading never raises and never blocks. A file that was changed less than two seconds ago and does not end with a line break
    may be incomplete: it is read again after 50 milliseconds, and an invalid last line is ignored until the next read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._stable: bytes | None = None

    def read(self) -> Reading:
        """Return the parsed content of the file. A missing file counts as empty."""
        try:
            content, is_fresh = self._load()
            for _ in range(ATTEMPTS):
                if not content or content.endswith(b"\n") or not is_fresh or content == self._stable:
                    break
                time.sleep(SETTLE_SECONDS)
                before, (content, is_fresh) = content, self._load()
                if content == before:
                    self._stable = content
        except FileNotFoundError:
            return Reading()
        except OSError as error:
            is_link = error.errno == errno.ELOOP
            return Reading(problems=[Problem(0, "is a symbolic link" if is_link else f"cannot be read: {error.strerror}")])
        except Refused as refused:
            return Reading(problems=[Problem(0, str(refused))])
        may_be_incomplete = is_fresh and not content.endswith(b"\n")
        if may_be_incomplete and content != self._stable:  # the file keeps changing
            content = content[: content.rfind(b"\n") + 1]
            may_be_incomplete = False
        return parse(content, may_be_incomplete=may_be_incomplete)

    def _load(self) -> tuple[bytes, bool]:
        """Return the content of the file, and whether the file was changed recently."""
        _check_file(os.lstat(self.path))  # checked before opening, because opening a device may have side effects
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _check_file(status)
            content = file.read(MAX_BYTES + 1)
        _check_size(len(content))
        return content, time.time() - status.st_mtime < FRESH_SECONDS


class Refused(Exception):
    """The file is not safe to read."""


def _check_file(status: os.stat_result) -> None:
    if problem := file_problem(status):
        raise Refused(problem)
    _check_size(status.st_size)


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise Refused(f"is larger than {MAX_BYTES // 1024} KiB")


def parse(content: bytes, *, may_be_incomplete: bool = False) -> Reading:
    """Parse the lines. With `may_be_incomplete`, an invalid last line is ignored.

    >>> reading = parse(b"# by hand\\nlearning_rate: 0.01\\nmomentum=0.9\\n")
    >>> reading.lines, reading.problems[0].reason
    ([Line(number=2, name='learning_rate', value=0.01)], "has no colon: 'momentum=0.9'; write name:value")
    """
    reading = Reading()
    raw_lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, raw in enumerate(raw_lines, 1):
        result = _parse_line(number, raw)
        if isinstance(result, Line):
            earlier = next((line.number for line in reading.lines if line.name == result.name), None)
            if earlier is not None:
                reason = f"sets {_short(result.name)} again, after line {earlier}; the last valid line counts"
                reading.problems.append(Problem(number, reason, f"{result.name} again"))
            reading.lines.append(result)
        elif result is not None and not (may_be_incomplete and number == len(raw_lines)):
            reading.problems.append(result)
    return reading


def _parse_line(number: int, raw: bytes) -> Line | Problem | None:
    try:
        text = raw.decode().partition("#")[0].strip()
    except UnicodeDecodeError:
        return Problem(number, f"is not text: {_short(raw)}", _short(raw))
    if not text:
        return None
    name, colon, written = (part.strip() for part in text.rpartition(":"))
    if not colon or not name:
        return Problem(number, f"has no {'name' if colon else 'colon'}: {_short(text)}; write name:value", _short(text))
    value = float(written) if NUMBER.fullmatch(written) else math.nan
    underflows = value == 0 and re.search("[1-9]", written.lower().partition("e")[0])  # such as 1e-999
    if not math.isfinite(value) or underflows:
        return Problem(number, f"needs a finite number for {_short(name)}: {_short(written)}", _short(text))
    return Line(number, name, value)


def _short(text: str | bytes) -> str:
    """Return the beginning of a text, with control characters escaped."""
    return ascii(text[:MAX_SHOWN]) + ("…" if len(text) > MAX_SHOWN else "")
