"""HostMemoryTracker: how much of the machine's memory a run takes, and how much is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.extras import optional
from hookpoint.core.callback.callback import Callback

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run

GB = 1024**3


class HostMemoryTracker(Callback):
    """Log the memory that is free on this machine, and what this process and its children take.

    The values are `HostFreeMemory (GB)`, tensorpack's name, and `HostMemory (GB)`. Loader workers share most of their memory
    with the process that has started them: on Linux what several have in common counts once; elsewhere it counts for each.
    Without psutil, of the extra `system`, it says so once and does nothing.

    Triggered at the end of each complete epoch; `.when(...)` moves it. Keeps nothing in the checkpoint. Runs on the chief. A
    step pays nothing; a trigger takes some milliseconds per process.

    >>> HostMemoryTracker().when(Every(minutes=5)).schedule
    Every(minutes=5)
    """

    ranks = "chief"
    may_write = ("HostFreeMemory (GB)", "HostMemory (GB)")

    def on_trigger(self, run: Run) -> None:
        psutil = optional(self.name or "HostMemoryTracker", "psutil", extra="system")
        if psutil is not None:
            run.put_scalar("HostFreeMemory (GB)", psutil.virtual_memory().available / GB)
            run.put_scalar("HostMemory (GB)", taken_bytes(psutil) / GB)


def taken_bytes(psutil: Any) -> int:
    """Return the memory of this process and its children; one that ends meanwhile takes none."""
    own = psutil.Process()
    return sum(_bytes_of(psutil, process) for process in [own, *own.children(recursive=True)])


def _bytes_of(psutil: Any, process: Any) -> int:
    try:
        memory = process.memory_full_info()
        return int(getattr(memory, "pss", 0) or memory.rss)
    except psutil.AccessDenied:
        try:
            return int(process.memory_info().rss)
        except psutil.Error:
            return 0
    except psutil.Error:
        return 0
