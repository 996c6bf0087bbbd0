"""Available memory: the amount of host memory that this process may still allocate."""

from __future__ import annotations

import re
from pathlib import Path

MEMINFO, CGROUP, GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Return the memory that is available without swapping and within the cgroup's limit, or None if it is unknown."""
    known = [bytes_ for bytes_ in (_of_system(), _of_cgroup()) if bytes_ is not None]
    return min(known, default=None)


def _of_system() -> int | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(MEMINFO), re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def _of_cgroup() -> int | None:
    """Return how much memory is left below a container's limit (cgroup version 2 only). The page cache counts as free."""
    found = re.search(r"^0::/(.*)$", _text(CGROUP), re.MULTILINE)
    folder = GROUPS / found[1] if found is not None else GROUPS
    limit, used = _text(folder / "memory.max").strip(), _text(folder / "memory.current").strip()
    cache = re.search(r"^inactive_file (\d+)", _text(folder / "memory.stat"), re.MULTILINE)
    if not limit.isdigit() or not used.isdigit():
        return None
    return max(int(limit) - int(used) + (int(cache[1]) if cache is not None else 0), 0)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
