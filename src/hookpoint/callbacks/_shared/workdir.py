"""Files that callbacks read and write in the workdir."""

from __future__ import annotations

import os
import stat

from hookpoint.core.errors import BadLoop
from hookpoint.core.run.run import Run


def require_workdir(owner: str, run: Run) -> None:
    """Raise unless the run has a workdir."""
    if run.workdir is None:
        raise BadLoop(f"{owner} needs a workdir.", give='workdir="runs/name"')


def rank_suffix(run: Run) -> str:
    """Return a file name suffix such as "-rank1", so that ranks write to different files. It is empty for rank 0."""
    return f"-rank{run.rank}" if run.rank else ""


def file_problem(status: os.stat_result) -> str:
    """Return the reason why a file must not control the run, such as "is a symbolic link".

    Return "" for this user's regular files.
    """
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, but this process runs as user {os.geteuid()}"
    return ""
