"""Stacks: what every thread of the process is doing at this moment."""

from __future__ import annotations

import threading
import traceback
from types import FrameType

from hookpoint.core.text.thread_frames import frames_by_thread

DEBUGGERS = ("pdb", "bdb", "code", "IPython", "ipdb", "pydevd", "debugpy", "_pydevd_bundle")


def thread_dump(first: int) -> str:
    """Return the stack of each thread but the one that asks, that of thread `first` at the top, its last call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {ident: frame for ident, frame in frames_by_thread().items() if ident != threading.get_ident()}
    parts = []
    for ident in sorted(frames, key=lambda ident: ident != first):
        lines = "".join(traceback.format_stack(frames[ident]))
        parts.append(f"{names.get(ident, f'thread {ident}')}, the last call last:\n{lines}")
    return "\n".join(parts)


def is_in_debugger(ident: int) -> bool:
    """Say whether a person is looking at this thread: a debugger or a shell is among its calls."""
    frame: FrameType | None = frames_by_thread().get(ident)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in DEBUGGERS:
            return True
        frame = frame.f_back
    return False
