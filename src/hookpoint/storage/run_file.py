"""RunFile: read and write run.json, which contains the description and status of the run in a workdir."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hookpoint.storage.disk import disk

logger = logging.getLogger("hookpoint")

NAME = "run.json"
LINEAGE = "lineage"  # the key of the lineage in run.json
FORMAT = 1
STATUSES = ("running", "finished", "stopped", "failed")
MAX_BYTES = 16 * 2**20  # larger files are not read
MAX_LEVELS = 100  # files that are nested more deeply are not read
TOO_DEEP = f"it is nested more than {MAX_LEVELS} levels deep"


class RunFile:
    """Update run.json atomically.

    A resumed run keeps its id and its first start time. It also keeps the recorded reasons why its results may differ from the
    results of an uninterrupted run (`inexact`). For a run that resumes, pass its lineage as `lineage`. For a run that starts
    from given weights, pass its lineage to `update` instead, under the key "lineage".

    >>> disk.make_folder(Path("runs/mine"))
    >>> file = RunFile("runs/mine")
    >>> file.update({"name": "mine", "status": "running", "started": "2026-11-15T12:00:00+00:00"})
    >>> read_run_file("runs/mine")["status"]
    'running'
    """

    def __init__(self, workdir: str | os.PathLike[str], lineage: Sequence[Mapping[str, Any]] = ()) -> None:
        self._path, self._lineage = Path(workdir) / NAME, list(lineage)
        self._facts: dict[str, Any] | None = None

    def update(self, facts: Mapping[str, Any]) -> None:
        """Write these keys and values to the file. A new value replaces an earlier value with the same key."""
        if self._facts is None:
            self._facts = self._with_earlier_starts(facts)
        else:
            self._facts |= facts
        disk.replace(self._path, (json.dumps(self._facts, indent=2, allow_nan=False) + "\n").encode())

    def earlier(self) -> dict[str, Any]:
        """Return the content of the file. If it cannot be read, log a warning and return an empty dict."""
        try:
            return _read(self._path)
        except OSError as error:
            logger.warning("%s could not be read; the record of earlier starts is lost: %s", self._path, error)
            return {}

    def _with_earlier_starts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        earlier = self.earlier()
        resumed = as_list(earlier.get("resumed"))
        merged = {"format": FORMAT, **facts, "resumed": resumed}
        if isinstance(earlier.get("started"), str):
            merged |= {"started": earlier["started"], "resumed": [*resumed, facts.get("started")]}
            merged |= {"id": earlier["id"]} if isinstance(earlier.get("id"), str) else {}
        lineage = self._lineage or as_list(facts.get(LINEAGE))
        if lineage:
            merged[LINEAGE] = [*lineage[:-1], {**lineage[-1], "at": facts.get("started")}]
        inexact = [*as_list(earlier.get("inexact")), *as_list(facts.get("inexact"))]
        return {**merged, "inexact": inexact} if inexact else merged


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def read_run_file(workdir: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of run.json in a workdir, or an empty dict if there is no valid file."""
    try:
        return _read(Path(workdir) / NAME)
    except OSError:
        return {}


def problem_of(workdir: str | os.PathLike[str]) -> str:
    """Return why run.json in a workdir cannot be read. Return an empty string if it is valid or does not exist."""
    path = Path(workdir) / NAME
    try:
        status = disk.status(path, follow=True)
        if status is None:
            return ""
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            return f"{NAME} is unreadable: it is not a file of at most {MAX_BYTES // 2**20} MiB"
        problem = _parsed(disk.read(path))[1]
    except FileNotFoundError:
        return ""
    except OSError as error:
        problem = error.strerror or str(error)
    return f"{NAME} is unreadable: {problem}" if problem else ""


def _read(path: Path) -> dict[str, Any]:
    status = disk.status(path, follow=True)
    if status is None or not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:  # reading a pipe would block
        return {}
    try:
        return parse_run_file(disk.read(path))
    except FileNotFoundError:
        return {}


def parse_run_file(data: bytes) -> dict[str, Any]:
    """Parse the content of run.json. Return an empty dict if it is invalid."""
    return _parsed(data)[0]


def _parsed(data: bytes) -> tuple[dict[str, Any], str]:
    """Return the content of run.json and an empty string. If the file is invalid, return an empty dict and the problem."""
    try:
        facts = json.loads(data)
    except RecursionError:
        return {}, TOO_DEEP
    except ValueError:
        return {}, "it is not JSON"
    if not isinstance(facts, dict) or type(facts.get("format")) is not int:
        return {}, "the key 'format' is missing or not an integer"
    if facts.get("status") not in STATUSES:
        return {}, f"its status must be one of {', '.join(STATUSES)}"
    return ({}, TOO_DEEP) if _is_too_deep(facts) else (facts, "")


def _is_too_deep(value: Any) -> bool:
    """Return whether a value is nested so deeply that recursive code could fail."""
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [
            item for one in level for item in (one.values() if isinstance(one, dict) else one) if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True
