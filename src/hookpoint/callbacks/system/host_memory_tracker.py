"""HostMemoryTracker: log the machine's free memory and the memory that the run uses."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hookpoint.callbacks._shared.extras import optional
from hookpoint.core.callback.callback import Callback
from hookpoint.core.run.run import Run

GB = 1024**3


class HostMemoryTracker(Callback):
    """Log this machine's free memory, and the memory that this process and its children use.

    The metrics are `HostFreeMemory (GB)`, as in tensorpack, and `HostMemory (GB)`. Loader workers share most of their memory
    with their parent process. On Linux, shared memory counts once; elsewhere, it counts for each process. Without psutil (extra
    `system`), the callback does nothing and logs one warning.

    Triggered at the end of each complete epoch, unless `.when(...)` replaces this schedule.

    >>> HostMemoryTracker().when(Every(minutes=5)).schedule
    Every(minutes=5)
    """

    ranks = "chief"
    step_cost = "nothing; a trigger takes a few milliseconds per process"
    may_write = ("HostFreeMemory (GB)", "HostMemory (GB)")

    def on_trigger(self, run: Run) -> None:
        psutil = optional(self.name or "HostMemoryTracker", "psutil", extra="system")
        if psutil is not None:
            run.put_scalar("HostFreeMemory (GB)", psutil.virtual_memory().available / GB)
            run.put_scalar("HostMemory (GB)", used_bytes(psutil) / GB)


def used_bytes(psutil: Any) -> int:
    """Return the memory that this process and its children use. A process that has ended counts as 0."""
    own = psutil.Process()
    return sum(_bytes_of(psutil, process) for process in [own, *own.children(recursive=True)])


def _bytes_of(psutil: Any, process: Any) -> int:
    for read in (process.memory_full_info, process.memory_info):  # memory_full_info may raise AccessDenied
        with suppress(psutil.Error):
            memory = read()
            return int(getattr(memory, "pss", 0) or memory.rss)
    return 0
