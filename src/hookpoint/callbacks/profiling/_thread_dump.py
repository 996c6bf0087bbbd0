"""The stacks of all threads of the process."""

from __future__ import annotations

import threading
import traceback

from hookpoint.core.text.thread_frames import frames_by_thread

DEBUGGERS = ("pdb", "bdb", "code", "IPython", "ipdb", "pydevd", "debugpy", "_pydevd_bundle")


def thread_dump(first: int) -> str:
    """Return the stacks of all threads except the caller, with thread `first` at the top and the most recent call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {ident: frame for ident, frame in frames_by_thread().items() if ident != threading.get_ident()}
    return "\n".join(
        f"{names.get(ident, f'thread {ident}')}, most recent call last:\n{''.join(traceback.format_stack(frames[ident]))}"
        for ident in sorted(frames, key=lambda ident: ident != first)
    )


def is_in_debugger(ident: int) -> bool:
    """Return whether a debugger or a shell is on the stack of this thread."""
    frame = frames_by_thread().get(ident)
    stack = () if frame is None else traceback.walk_stack(frame)
    return any(str(frame.f_globals.get("__name__", "")).partition(".")[0] in DEBUGGERS for frame, _ in stack)
