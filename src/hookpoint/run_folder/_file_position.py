"""FilePosition: where to continue reading a file that a run is writing and may truncate or replace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO

MARK_BYTES = 256  # to detect changes, compare this many bytes before the offset


class FilePosition:
    """A byte offset in a file. The file's id and the bytes before the offset are stored too, to detect changes to the file."""

    def __init__(self, offset: int = 0, mark: bytes = b"", file_id: tuple[int, int] | None = None) -> None:
        self.offset = offset
        self.mark = mark
        self.file_id = file_id

    def move(self, file: BinaryIO, offset: int) -> None:
        """Move to an offset in a file. A complete line must end there."""
        self.file_id = id_of(file)
        self.mark = mark_of(file, offset)
        self.offset = offset

    def advance(self, lines: Sequence[bytes], size_bytes: int) -> None:
        """Move past lines that have been read. `lines` have no newlines, but `size_bytes` includes them."""
        self.offset += size_bytes
        last = b"".join([line[-MARK_BYTES:] + b"\n" for line in lines[-MARK_BYTES:]])
        self.mark = (self.mark + last)[-MARK_BYTES:]

    def is_in(self, file: BinaryIO) -> bool:
        """Return whether the bytes before the offset are unchanged: the file was neither truncated nor rewritten."""
        return mark_of(file, self.offset) == self.mark


def id_of(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def mark_of(file: BinaryIO, offset: int) -> bytes:
    """Return up to 256 bytes before an offset."""
    begin = max(0, offset - MARK_BYTES)
    file.seek(begin)
    return file.read(offset - begin)
