"""AutomaticGc: Python's automatic garbage collection, switched off by several and put back by the last."""

from __future__ import annotations

import gc
import os
from threading import Lock


class AutomaticGc:
    """Hold the automatic collection of this process off, until each of those who asked for it has let go.

    What the first found is put back by the last: whether it was on, and objects that were frozen for it. Thresholds are never
    touched. Where someone else has frozen objects, they stay frozen and no more are. A process that is forked meanwhile, as a
    loader's worker is, collects as it would have.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._was_on = False
        self._has_frozen = False
        self._minds_forks = False

    def hold(self, *, freeze: bool = False) -> None:
        """Switch it off and collect once; with `freeze`, leave what is there by then out of later collections."""
        with self._lock:
            if self._holders == 0:
                self._was_on = gc.isenabled()
                if not self._minds_forks and hasattr(os, "register_at_fork"):
                    self._minds_forks = True
                    os.register_at_fork(after_in_child=self._after_fork)
            self._holders += 1
            gc.disable()
            gc.collect()
            if freeze and not self._has_frozen and gc.get_freeze_count() == 0:
                self._has_frozen = True
                gc.freeze()

    def release(self) -> None:
        """Let go of it; the last one puts it back as it was."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._put_back()

    def _put_back(self) -> None:
        if self._has_frozen:
            self._has_frozen = False
            gc.unfreeze()
        if self._was_on:
            gc.enable()

    def _after_fork(self) -> None:
        self._lock = Lock()
        if self._holders:
            self._holders = 0
            self._put_back()


AUTOMATIC = AutomaticGc()
