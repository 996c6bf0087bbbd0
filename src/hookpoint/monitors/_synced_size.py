"""Waiting until a file is on disk."""

from __future__ import annotations

import os
from pathlib import Path


def synced_size(path: Path) -> int:
    """Wait until a file is on disk; return its size."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size
