"""Call the callback methods that prepare the workdir before a run, and those that finish it after the run.

`begin_workdir(run, resume)` is called before the run looks for a checkpoint, and `end_workdir()` after the run has written its
last file. These methods are not points, because points fire only while a run is active.
"""

from __future__ import annotations

from typing import Any

from hookpoint.core.checkpoint.store import Resume
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.logger import logger


def begin_workdir(hooks: Hooks, run: Any, resume: Resume) -> None:
    """Let callbacks prepare the workdir. If one of them fails, the run does not start."""
    for entry in hooks.entries:
        prepare = getattr(entry.subject, "begin_workdir", None)
        if prepare is not None:
            prepare(run, resume)


def end_workdir(hooks: Hooks) -> None:
    """Tell callbacks that the run no longer writes to the workdir. Log errors instead of raising them: the run is over."""
    for entry in reversed(hooks.entries):
        finish = getattr(entry.subject, "end_workdir", None)
        if finish is not None:
            try:
                finish()
            except Exception:
                logger.exception("%s failed at the end of the run", entry.name)
