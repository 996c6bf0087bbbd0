"""Callbacks that take care of the workdir: before the run looks for a checkpoint, and after it has written its last file.

These are methods, not points, because there is no run yet or no longer: `begin_workdir(run, resume)` and `end_workdir()`.
"""

from __future__ import annotations

from typing import Any

from hookpoint.core.checkpoint.store import Resume
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.logger import logger


def begin_workdir(hooks: Hooks, run: Any, resume: Resume) -> None:
    """Let callbacks prepare the workdir. An error keeps the run from starting."""
    for entry in hooks.entries:
        prepare = getattr(entry.subject, "begin_workdir", None)
        if prepare is not None:
            prepare(run, resume)


def end_workdir(hooks: Hooks) -> None:
    """Tell callbacks that nothing in the workdir changes any more. Errors are logged: the run is over."""
    for entry in reversed(hooks.entries):
        finish = getattr(entry.subject, "end_workdir", None)
        if finish is not None:
            try:
                finish()
            except Exception:
                logger.exception("%s failed at the end of the run", entry.name)
