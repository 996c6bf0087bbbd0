"""Pause garbage collection while creating many long-lived objects, such as modules."""

from __future__ import annotations

import gc
from types import TracebackType


class GcPause:
    """Pause automatic garbage collection inside a `with` block. If it is already disabled, do nothing.

    An import creates thousands of objects and no garbage. Still, every 700 new objects trigger a collection, and some of these
    collections scan all objects in the process. With torch imported, such a scan takes 150 ms.
    """

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._was_enabled:
            gc.enable()
