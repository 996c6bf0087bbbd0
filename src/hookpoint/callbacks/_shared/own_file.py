"""Files in the workdir that control a run: only those of its user count."""

from __future__ import annotations

import os
import stat


def file_problem(status: os.stat_result) -> str:
    """Return why a file must not be trusted, such as "is not a regular file"; empty if it may be."""
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, but this process runs as user {os.geteuid()}"
    return ""
