"""File stamp: tell whether a file has changed, without opening it."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

SETTLED_NS = 2 * 10**9


class FileStamp(NamedTuple):
    """The inode, size and modification time of a file."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileStamp:
        """Return the stamp of a file. Raises OSError if there is no such file."""
        status = os.stat(path)
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether the last change was more than two seconds ago. If so, every later change also changes the stamp.

        File times are coarse, so two changes in quick succession may result in the same stamp.
        """
        return time.time_ns() - self.changed_ns > SETTLED_NS
