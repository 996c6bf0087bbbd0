"""Which errors of a save say that memory is short, and the error that a run reports instead."""

from __future__ import annotations

import errno
import re
import traceback

from hookpoint.core.errors import CannotSave

# What torch's allocators raise on a host and on a device, what a thread that cannot start does, and what another process of a
# team has told of either. The core does not import torch, whose class for it is a RuntimeError.
SAID = re.compile(
    r"(?:MemoryError|OutOfMemoryError)\b|can't allocate memory|cannot allocate memory|out of memory|not enough memory"
    r"|can't start new thread",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error comes of too little memory."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and SAID.search(f"{type(error).__name__}: {error}") is not None


def out_of_memory(error: BaseException) -> CannotSave:
    """Return the error of a checkpoint for which memory did not suffice; let go of what the failed save still holds."""
    traceback.clear_frames(error.__traceback__)
    if isinstance(error, CannotSave):
        return error
    said = str(error).strip().partition("\n")[0]
    why = type(error).__name__ + (f": {said}" if said else "")
    made = CannotSave(f"there is not enough memory for a checkpoint ({why})", errno=errno.ENOMEM)
    made.__cause__ = error
    return made
