"""StepWatch: a thread that looks at how long the step under way has taken."""

from __future__ import annotations

import faulthandler
import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock, Thread, get_ident
from time import monotonic
from typing import Any

from hookpoint.callbacks.profiling._thread_dump import is_in_debugger

logger = logging.getLogger("hookpoint")

_timer = Lock()  # of faulthandler, which has one for the process: the first who watches has it


class StepWatch:
    """Call `late` once for a step that takes longer than `limit` seconds, from a thread of its own.

    Whoever steps, in the thread that made this, stores when the step began in `began`, and None when it has ended. A step that
    is looked at in a debugger is not late. When the interpreter itself hangs, no thread runs, this one neither: then a timer
    of faulthandler, which needs no interpreter, writes all stacks into the file `stuck`, and with `exits` ends the process.
    """

    def __init__(
        self,
        owner: str,
        limit: float,
        longest: float,
        late: Callable[[float], None],
        *,
        stuck: Path | None = None,
        exits: bool = False,
    ) -> None:
        self.began: float | None = None
        self.limit = limit
        self.thread = get_ident()
        self._late = late
        self._pause = min(max(limit / 8, 0.01), 5.0)
        self._stuck_after = longest + limit + 4 * self._pause
        self._exits = exits
        self._stuck = stuck
        self._file: Any = None
        if stuck is not None and _timer.acquire(blocking=False):
            self._file = open(stuck, "ab", buffering=0)  # noqa: SIM115 - the timer writes to it as long as it runs
        self._closing = Event()
        self._thread = Thread(target=self._work, args=[owner], name=f"hookpoint {owner}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and the timer."""
        self._closing.set()
        try:
            self._thread.join(timeout=10)
        finally:  # an interrupt may come while it is waited for
            self.end_timer()

    def end_timer(self) -> None:
        """End the timer, and remove its file if there is nothing in it."""
        if self._file is not None:
            faulthandler.cancel_dump_traceback_later()
            self._file.close()
            self._file = None
            _timer.release()
            if self._stuck is not None and self._stuck.stat().st_size == 0:
                self._stuck.unlink()

    def _work(self, owner: str) -> None:
        dealt_with: float | None = None
        try:
            while not self._closing.is_set():
                if self._file is not None:
                    faulthandler.dump_traceback_later(self._stuck_after, file=self._file, exit=self._exits)
                began, now = self.began, monotonic()
                if began is not None and began != dealt_with and now - began >= self.limit:
                    dealt_with = began
                    if not is_in_debugger(self.thread):
                        self._late(now - began)
                self._closing.wait(self._pause)
        except Exception as error:
            logger.warning("%s failed: %s: %s; the run goes on without it", owner, type(error).__name__, error)
