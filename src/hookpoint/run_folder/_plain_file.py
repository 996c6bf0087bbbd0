"""Read lines from untrusted files of any size."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from hookpoint.storage.disk.complete_lines import MAX_LINE_BYTES, end_of_complete_lines, lines_backwards

PIECE_BYTES = 2**20
NEWEST_BYTES = 8 * 2**20  # large enough for many lines, even with many metrics per line


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Raise OSError for a pipe or a device, which could block forever."""
    nonblocking = getattr(os, "O_NONBLOCK", 0)
    file = open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | nonblocking))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
    return file


def complete_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines after the current position, without newlines. An incomplete last line is left out.

    Raises OSError for a line of more than 16 MiB.
    """
    for lines in line_batches(file):
        yield from lines


def line_batches(file: BinaryIO, max_bytes: int = sys.maxsize) -> Iterator[list[bytes]]:
    """Yield the same lines as `complete_lines`, in batches of about a megabyte. Read at most `max_bytes`."""
    rest = b""
    while piece := file.read(min(PIECE_BYTES, max_bytes)):
        max_bytes -= len(piece)
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        if lines:
            yield lines
        if len(rest) > MAX_LINE_BYTES:
            raise OSError(errno.EFBIG, "has a line that is too long for a record", file.name)


def newest_lines(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the lines in the last 8 MiB of a file, last line first. Yield nothing if the file cannot be read."""
    with suppress(OSError), open_plain(path) as file:
        end = end_of_complete_lines(file, MAX_LINE_BYTES)
        yield from (line for _, line in lines_backwards(file, end, max(0, end - NEWEST_BYTES)))
