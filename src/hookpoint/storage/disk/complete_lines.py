"""Read complete lines from the end of a file. A last line without a newline is incomplete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

PIECE_BYTES = 2**16
MAX_LINE_BYTES = 16 * 2**20  # no record is longer than this


def end_of_complete_lines(file: BinaryIO, max_bytes: int | None = None) -> int:
    """Return the size of a file without an incomplete last line. Return 0 if the last `max_bytes` contain no newline."""
    end = file.seek(0, os.SEEK_END)
    if end == 0 or ends_a_line(file, end):
        return end
    first = 0 if max_bytes is None else max(0, end - max_bytes)
    while end > first:
        start = max(first, end - PIECE_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def ends_a_line(file: BinaryIO, position: int) -> bool:
    file.seek(position - 1)
    return file.read(1) == b"\n"


def lines_backwards(file: BinaryIO, end: int, begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the position and content of each line before `end`, last line first. `end` must be the end of a line.

    Lines that start before `begin` are omitted. The iteration stops at a line of more than 16 MiB.
    """
    position, rest = end - 1, b""
    while position > begin and len(rest) <= MAX_LINE_BYTES:
        size = min(position - begin, PIECE_BYTES)
        position -= size
        file.seek(position)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        start = position + len(rest) + sum(map(len, lines)) + len(lines) + 1
        for line in reversed(lines):
            start -= len(line) + 1
            yield start, line
    if position == 0:
        yield 0, rest
