"""Find the end of the last complete line of a file."""

from __future__ import annotations

import os
from typing import BinaryIO

PIECE_BYTES = 2**16


def end_of_whole_lines(file: BinaryIO) -> int:
    """Return the length of a file without an incomplete last line. Only that line is read."""
    end = file.seek(0, os.SEEK_END)
    if end == 0 or ends_a_line(file, end):
        return end
    while end > 0:
        start = max(0, end - PIECE_BYTES)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def ends_a_line(file: BinaryIO, position: int) -> bool:
    file.seek(position - 1)
    return file.read(1) == b"\n"
