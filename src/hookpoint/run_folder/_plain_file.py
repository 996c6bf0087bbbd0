"""Reading files that anybody may have made: plain files only, line by line, however long they are."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

PIECE_BYTES = 2**20
LAST_PIECE_BYTES = 2**16  # often all that is wanted
MOST_LINE_BYTES = 16 * 2**20  # of a line; anything longer is none of ours


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read. A pipe or a device of that name, which could keep us waiting for ever, is an OSError."""
    file = open(path, "rb", buffering=0, opener=_without_waiting)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is no plain file", os.fspath(path))
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines from where the file stands, without their ends. A last one that does not end is left out.

    A line that is too long to be one of ours is an OSError.
    """
    for lines in line_batches(file):
        yield from lines


def line_batches(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the same lines as `whole_lines`, those of about a megabyte at a time."""
    rest = b""
    while piece := file.read(PIECE_BYTES):
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        if lines:
            yield lines
        if len(rest) > MOST_LINE_BYTES:
            raise OSError(errno.EFBIG, "has a line that is too long for a record", file.name)


def newest_lines(file: BinaryIO, most_bytes: int) -> tuple[list[bytes], bool]:
    """Return the lines in the last so many bytes, the oldest first, and whether those are all that the file has."""
    start = max(0, file.seek(0, os.SEEK_END) - most_bytes)
    file.seek(start)
    lines = _read(file, most_bytes).split(b"\n")
    lines.pop()  # a torn line, or nothing
    return (lines, True) if start == 0 else (lines[1:], False)


def lines_backwards(file: BinaryIO, end: int | None = None, most_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the lines from the last to the first, without their ends. A last one that does not end is left out.

    The last is the one before `end`, or that of the file. It ends at a line that is too long to be one of ours, and where
    `most_bytes` were read.
    """
    begin = position = file.seek(0, os.SEEK_END) if end is None else end
    least = 0 if most_bytes is None else max(0, begin - most_bytes)
    rest: bytes | None = None  # the beginning of a line whose end was read; None before the last line end was seen
    while position > least:
        size = min(position - least, LAST_PIECE_BYTES if rest is None else PIECE_BYTES)
        position -= size
        file.seek(position)
        lines = (_read(file, size) + (rest or b"")).split(b"\n")
        if rest is None and len(lines) == 1:
            if begin - position > MOST_LINE_BYTES:
                return
            continue  # a torn line, longer than a piece
        if rest is None:
            lines.pop()
        rest = lines[0]
        yield from reversed(lines[1:])
        if len(rest) > MOST_LINE_BYTES:
            return
    if rest is not None and position == 0:
        yield rest


def _read(file: BinaryIO, size: int) -> bytes:
    """Read that much, or less where the file was cut back meanwhile."""
    pieces = []
    while size > 0 and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
