"""Pause garbage collection while objects are created that all stay alive, such as modules."""

from __future__ import annotations

import gc
from types import TracebackType


class GcPause:
    """Pause automatic garbage collection inside a `with` block; do nothing if it is disabled.

    An import creates thousands of objects and no garbage, but each 700 of them start a collection, and some of these look at
    every object of the process: 150 ms with torch imported.
    """

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._was_enabled:
            gc.enable()
