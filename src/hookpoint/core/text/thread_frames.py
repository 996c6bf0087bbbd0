"""The stack frames of this process's threads."""

from __future__ import annotations

import sys
from types import FrameType


def frames_by_thread() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by the thread's identifier."""
    return sys._current_frames()
