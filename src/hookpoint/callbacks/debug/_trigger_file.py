"""TriggerFile: a file that someone makes to ask for something."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger("hookpoint")


class TriggerFile:
    """Look for a file, which counts only if it is a regular one, with one name, of the user who runs this, and no link.

    Nothing here raises. What is in its place and does not count is named once, and again after it was gone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._said = ""

    def is_there(self) -> bool:
        """Say whether the file is there."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            self._said = ""
            return False
        except OSError as error:
            self.say(f"cannot be looked at: {error.strerror}")
            return False
        wrong = _what_is_wrong(found)
        if wrong:
            self.say(f"{wrong}, and does not count")
        return not wrong

    def remove(self) -> None:
        """Remove the file, or say that it is still there."""
        try:
            os.unlink(self.path)
        except OSError as error:
            logger.warning("%s could not be removed: %s", self.path, error.strerror)

    def say(self, words: str) -> None:
        """Say something about the file, once while it is there."""
        if words != self._said:
            self._said = words
            logger.warning("%s %s", self.path, words)


def _what_is_wrong(found: os.stat_result) -> str:
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, not to {os.geteuid()}, who trains"
    if found.st_nlink != 1:  # someone may have given a file of this user a second name
        return "has other names"
    return ""
