"""TriggerFile: a file whose creation is a request."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger("hookpoint")


class TriggerFile:
    """Check for a file. It counts only if it is a regular file of this user, with one name, and not a symbolic link.

    Nothing raises. Anything else in its place is logged once, and again after it was gone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._logged = ""

    def is_there(self) -> bool:
        """Return whether the file exists and counts."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            self._logged = ""
            return False
        except OSError as error:
            self.warn(f"cannot be checked: {error.strerror}")
            return False
        problem = _problem(found)
        if problem:
            self.warn(f"{problem} and is ignored")
        return not problem

    def remove(self) -> None:
        """Remove the file, or log that it still exists."""
        try:
            os.unlink(self.path)
        except OSError as error:
            logger.warning("%s could not be removed: %s", self.path, error.strerror)

    def warn(self, text: str) -> None:
        """Log a warning about the file, once while it exists."""
        if text != self._logged:
            self._logged = text
            logger.warning("%s %s", self.path, text)


def _problem(found: os.stat_result) -> str:
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, not to {os.geteuid()}"
    if found.st_nlink != 1:  # another user may have linked a file of this user
        return "has other names"
    return ""
