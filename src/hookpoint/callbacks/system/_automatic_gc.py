"""AutomaticGc: switch Python's automatic garbage collection off and on again."""

from __future__ import annotations

import gc
import os
from threading import Lock


class AutomaticGc:
    """Disable the automatic collection of this process while at least one holder exists.

    The last holder restores the previous state: whether it was enabled, and which objects were frozen. Thresholds are never
    changed. If other code has frozen objects, they stay frozen, and no more are frozen. A forked process, such as a loader
    worker, collects as usual.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._was_on = False
        self._has_frozen = False
        self._watches_forks = False

    def hold(self, *, freeze: bool = False) -> None:
        """Disable it and collect once. With `freeze`, exclude the objects that exist now from later collections."""
        with self._lock:
            if self._holders == 0:
                self._was_on = gc.isenabled()
                if not self._watches_forks and hasattr(os, "register_at_fork"):
                    self._watches_forks = True
                    os.register_at_fork(after_in_child=self._after_fork)
            self._holders += 1
            gc.disable()
            gc.collect()
            if freeze and not self._has_frozen and gc.get_freeze_count() == 0:
                self._has_frozen = True
                gc.freeze()

    def release(self) -> None:
        """Release it. The last holder restores the previous state."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._restore()

    def _restore(self) -> None:
        if self._has_frozen:
            self._has_frozen = False
            gc.unfreeze()
        if self._was_on:
            gc.enable()

    def _after_fork(self) -> None:
        self._lock = Lock()
        if self._holders:
            self._holders = 0
            self._restore()


AUTOMATIC = AutomaticGc()
