"""StepWatch: a thread that checks how long the current step takes; thread_dump: the stacks of all threads."""

from __future__ import annotations

import faulthandler
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from threading import Lock, get_ident
from time import monotonic
from typing import Any

from hookpoint.callbacks._shared.ticker import Ticker
from hookpoint.core.text.thread_frames import frames_by_thread

DEBUGGERS = ("pdb", "bdb", "code", "IPython", "ipdb", "pydevd", "debugpy", "_pydevd_bundle")

_timer = Lock()  # faulthandler has only one timer per process; the StepWatch that holds this lock uses it


class StepWatch:
    """Call `on_late` from a thread, once for each step that takes longer than `limit` seconds.

    The thread that created the watch sets `began` when a step begins, and resets it to None when the step ends. For a step
    that is paused in a debugger, `on_late` is not called. If the interpreter itself hangs, no Python thread can run. In this
    case, faulthandler's timer writes all stacks to the file `stuck`, because this timer does not need the interpreter. If
    `exits` is True, the timer then ends the process.
    """

    def __init__(
        self, owner: str, limit: float, longest: float, on_late: Callable[[float], None], *, stuck: Path | None, exits: bool
    ) -> None:
        self.began: float | None = None
        self.limit = limit
        self.thread = get_ident()
        self._on_late = on_late
        pause = min(max(limit / 8, 0.01), 5.0)
        self._stuck_after = longest + limit + 4 * pause
        self._exits = exits
        self._stuck = stuck
        self._file: Any = None
        if stuck is not None and _timer.acquire(blocking=False):
            self._file = open(stuck, "ab", buffering=0)  # noqa: SIM115 - stays open for the timer
        self._reported: float | None = None
        self._check()
        self._ticker = Ticker(owner, pause, self._check)

    def close(self) -> None:
        """Stop the thread, and cancel the timer."""
        try:
            self._ticker.stop(timeout_seconds=10)
        finally:  # cancel the timer even if an interrupt ends the wait for the thread
            self.end_timer()

    def end_timer(self) -> None:
        """Cancel the timer, and remove the file `stuck` if nothing was written to it."""
        if self._file is not None:
            faulthandler.cancel_dump_traceback_later()
            self._file.close()
            self._file = None
            _timer.release()
            if self._stuck is not None and self._stuck.stat().st_size == 0:
                self._stuck.unlink()

    def _check(self) -> None:
        if self._file is not None:
            faulthandler.dump_traceback_later(self._stuck_after, file=self._file, exit=self._exits)
        began, now = self.began, monotonic()
        if began is not None and began != self._reported and now - began >= self.limit:
            self._reported = began
            if not is_in_debugger(self.thread):
                self._on_late(now - began)


def thread_dump(first: int) -> str:
    """Return the stacks of all threads except the calling one: thread `first` at the top, the most recent call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {ident: frame for ident, frame in frames_by_thread().items() if ident != threading.get_ident()}
    return "\n".join(
        f"{names.get(ident, f'thread {ident}')}, most recent call last:\n{''.join(traceback.format_stack(frames[ident]))}"
        for ident in sorted(frames, key=lambda ident: ident != first)
    )


def is_in_debugger(ident: int) -> bool:
    """Return whether a debugger or an interactive Python shell is running in this thread."""
    frame = frames_by_thread().get(ident)
    stack = () if frame is None else traceback.walk_stack(frame)
    return any(str(frame.f_globals.get("__name__", "")).partition(".")[0] in DEBUGGERS for frame, _ in stack)
