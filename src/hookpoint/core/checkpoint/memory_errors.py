"""Detect saves that failed because memory ran out."""

from __future__ import annotations

import errno
import re
import traceback

from hookpoint.core.errors import CannotSave

# MESSAGE matches errors from torch's host and device allocators, and the error that Python raises if it cannot start a thread.
# It also matches the messages in which another rank reports one of these errors.
# The core cannot import torch's OutOfMemoryError, so is_out_of_memory matches the text of any RuntimeError.
MESSAGE = re.compile(
    r"(?:MemoryError|OutOfMemoryError)\b|can't allocate memory|cannot allocate memory|out of memory|not enough memory"
    r"|can't start new thread",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error was caused by a lack of memory."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and MESSAGE.search(f"{type(error).__name__}: {error}") is not None


def out_of_memory(error: BaseException) -> CannotSave:
    """Return the error to raise for a checkpoint that does not fit in memory. Free the memory that the failed save holds."""
    traceback.clear_frames(error.__traceback__)
    if isinstance(error, CannotSave):
        return error
    line = str(error).strip().partition("\n")[0]
    why = type(error).__name__ + (f": {line}" if line else "")
    result = CannotSave(f"not enough memory for a checkpoint ({why})", errno=errno.ENOMEM)
    result.__cause__ = error
    return result
