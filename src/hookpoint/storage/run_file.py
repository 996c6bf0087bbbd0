"""RunFile: run.json, which says what the run in a workdir is and how it stands."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookpoint.storage.disk import disk

logger = logging.getLogger("hookpoint")

NAME = "run.json"
FORMAT = 1
STATUSES = ("running", "finished", "stopped", "failed")
MOST_BYTES = 16 * 2**20  # of a file that is read; anything longer is none of ours


class RunFile:
    """Write run.json, whole or not at all, each time more is known. When a run goes on, its first start stays known, and so
    does what has made it inexact.

    >>> disk.make_folder(Path("runs/mine"))
    >>> file = RunFile("runs/mine")
    >>> file.update({"name": "mine", "status": "running", "started": "2026-11-15T12:00:00+00:00"})
    >>> read_run_file("runs/mine")["status"]
    'running'
    """

    def __init__(self, workdir: str | os.PathLike[str]) -> None:
        self._path = Path(workdir) / NAME
        self._facts: dict[str, Any] | None = None

    def update(self, facts: Mapping[str, Any]) -> None:
        """Add what is known now to what is written there."""
        if self._facts is None:
            self._facts = self._with_earlier_starts(facts)
        else:
            self._facts |= facts
        disk.replace(self._path, (json.dumps(self._facts, indent=2, allow_nan=False) + "\n").encode())

    def earlier(self) -> dict[str, Any]:
        """Return what is written there; say so where it cannot be read, and return nothing."""
        try:
            return _read(self._path) or {}
        except OSError as error:
            logger.warning("%s could not be read, so it forgets earlier starts of the run: %s", self._path, error)
            return {}

    def _with_earlier_starts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        earlier = self.earlier()
        resumed = _list(earlier.get("resumed"))
        made = {"format": FORMAT, **facts, "resumed": resumed}
        if isinstance(earlier.get("started"), str):
            made |= {"started": earlier["started"], "resumed": [*resumed, facts.get("started")]}
        inexact = [*_list(earlier.get("inexact")), *_list(facts.get("inexact"))]
        return {**made, "inexact": inexact} if inexact else made


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def read_run_file(workdir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return what run.json in a workdir says, or None where there is none of ours."""
    try:
        return _read(Path(workdir) / NAME)
    except OSError:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    found = disk.status(path, follow=True)
    if found is None or not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:  # a pipe would wait for ever
        return None
    try:
        facts = json.loads(disk.read(path))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    is_ours = isinstance(facts, dict) and type(facts.get("format")) is int and facts.get("status") in STATUSES
    return facts if is_ours else None
