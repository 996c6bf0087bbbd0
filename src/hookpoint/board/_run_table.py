"""RunTable: keep an up-to-date row for each run below the given folders."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from hookpoint.board._run_control import has_control
from hookpoint.core.text.plain_values import plain
from hookpoint.run_folder.best_value import BestValue, metric_to_watch
from hookpoint.run_folder.command_error import one_line
from hookpoint.run_folder.json_records import number_of
from hookpoint.run_folder.run_details import settings_of
from hookpoint.run_folder.run_folder import EVENTS, FAILED, FINISHED, RUNNING, SCALARS, STOPPED, UNKNOWN, RunFolder
from hookpoint.run_folder.run_scanner import RunScanner
from hookpoint.storage.run_file import NAME
from hookpoint.storage.workdir.lock import holder_of

logger = logging.getLogger("hookpoint")

KEY_CHARACTERS = 16
MAX_HYPER = 100  # maximum number of hyper-parameter names in a run's row
MAX_SETTING = 200  # maximum length of a setting in the table, in characters
RUNNING_SECONDS = 1.0  # interval between checks of the runs in progress
SEARCH_SECONDS = 10.0  # interval between searches for new runs
ENDED = (FINISHED, STOPPED, FAILED)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows that are new or have changed, and the keys of runs that have vanished."""

    rows: list[Row] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rows or self.gone)


@dataclass(slots=True)
class _Entry:
    path: Path
    folder: str
    label: str
    stamp: tuple[Any, ...] = ()
    row: Row = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


class RunTable:
    """The runs below the given folders.

    Each run has a key, which is a digest of its path, so that requests never contain paths.
    `update` reads only the files of runs that have changed. Other threads may read the rows during an update.
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]]) -> None:
        self._roots = [Path(os.path.abspath(folder)) for folder in folders]
        self._scanners = [RunScanner(root) for root in self._roots]
        self._entries: dict[str, _Entry] = {}
        self._lock = Lock()
        self._listeners: list[Callable[[Changes], None]] = []
        self._searched = self._looked = -math.inf
        self.version = time.time_ns() // 10**6  # changes whenever the rows change or the server restarts

    def __len__(self) -> int:
        return len(self._entries)

    def rows(self) -> list[Row]:
        """Return all rows: runs in progress first, then the others, newest first."""
        rows = [entry.row for entry in list(self._entries.values()) if entry.row]
        rows.sort(key=lambda row: (row["started"] or "", row["label"]), reverse=True)
        return sorted(rows, key=lambda row: row["status"] != RUNNING)

    def path(self, key: str) -> Path | None:
        """Return the folder of a run, or None if there is no such run."""
        entry = self._entries.get(key)
        return None if entry is None else entry.path

    def label(self, key: str) -> str:
        """Return a run's name in the table, or an empty string if there is no such run."""
        entry = self._entries.get(key)
        return "" if entry is None else entry.label

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the settings of all runs, by key. Long values are truncated."""
        return {key: entry.settings for key, entry in list(self._entries.items())}

    def row(self, key: str) -> Row | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.row

    def listen(self, listener: Callable[[Changes], None]) -> None:
        """Register a function that is called with each later change, on the thread that finds the change."""
        self._listeners.append(listener)

    def update(self) -> None:
        """Refresh the rows of runs in progress, at most once per second.

        At most every ten seconds, also refresh all other rows and search for new runs.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._searched >= SEARCH_SECONDS:
                self._refresh(search=True)
            elif now - self._looked >= RUNNING_SECONDS:
                self._refresh(search=False)

    def refresh(self) -> None:
        """Search the folders, and update all rows."""
        with self._lock:
            self._refresh(search=True)

    def _refresh(self, *, search: bool) -> None:
        changes = self._search() if search else Changes()
        self._look(changes, search)
        self._looked = time.monotonic()
        self._searched = self._looked if search else self._searched
        if changes:
            self.version += 1
            for listener in self._listeners:
                listener(changes)

    def _look(self, changes: Changes, search: bool) -> None:
        entries = [(key, one) for key, one in self._entries.items() if search or one.row["status"] == RUNNING]
        for key, entry in entries:
            stamp = _stamp(entry.folder, entry.row.get("status"))
            is_alive = entry.row.get("status") != RUNNING or holder_of(entry.path) is not None
            if stamp == entry.stamp and is_alive:
                continue
            row, entry.settings = self._read(key, entry)
            entry.stamp = stamp if row["status"] not in ENDED else stamp[:1]
            if row != entry.row:
                entry.row = row
                changes.rows.append(row)

    def _read(self, key: str, entry: _Entry) -> tuple[Row, dict[str, Any]]:
        """Return a run's row and settings. If the run cannot be read, return a row that contains the reason."""
        run = RunFolder(entry.path)
        try:
            return row_of(run, key, entry.label), short_settings(run)
        except Exception as error:
            logger.warning("%s cannot be read", entry.path, exc_info=True)
            return unreadable_row(entry.path, key, entry.label, error), {}

    def _search(self) -> Changes:
        found: dict[str, _Entry] = {}
        for root, scanner in zip(self._roots, self._scanners, strict=True):
            for path in scanner.scan():
                key = key_of(path)
                found.setdefault(key, self._entries.get(key) or _Entry(path, str(path), self._label(root, path)))
        gone = [key for key in self._entries if key not in found]
        self._entries = found
        return Changes(gone=gone)

    def _label(self, root: Path, path: Path) -> str:
        below = os.path.relpath(path, root)
        if below == ".":
            return root.name
        return below if len(self._roots) == 1 else os.path.join(root.name, below)


def key_of(path: str | os.PathLike[str]) -> str:
    """Return the key of a run folder."""
    return hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:KEY_CHARACTERS]


def row_of(run: RunFolder, key: str, label: str) -> Row:
    """Return a run's row. If the run has ended, only run.json is read.

    For a run in progress, `since` is the current time minus its training time. For any other run, and during a pause, `seconds`
    is its training time.
    """
    status = run.status
    step = run.facts.get("step")
    has_ended = status in ENDED and type(step) is int
    best = run.stated_best
    seconds = run.seconds
    is_ticking = status == RUNNING and seconds is not None and not run.is_paused
    row = {
        "key": key,
        "name": run.name,
        "label": label,
        "status": status,
        "paused": run.is_paused,
        "reason": run.reason,
        "step": step if has_ended else run.step,
        "epoch": run.facts.get("epoch") if has_ended else run.epoch,
        "epochs": run.epochs,
        "started": None if run.started is None else run.started.isoformat(),
        "seconds": None if is_ticking else seconds,
        "since": round(time.time() - seconds) if is_ticking and seconds is not None else None,
        "best": None if best is None else asdict(best),
        "last": stored_last(run, best) if has_ended else run.last_value,
        "control": status == RUNNING and has_control(run.path),
        "hyper": list(islice(hyper, MAX_HYPER)) if isinstance(hyper := run.facts.get("hyper"), dict) else [],
    }
    return dict(plain(row))


def unreadable_row(path: Path, key: str, label: str, error: Exception) -> Row:
    """Return the row of a run that cannot be read."""
    nothing = ("step", "epoch", "epochs", "started", "seconds", "since", "best", "last")
    reason = f"unreadable: {type(error).__name__}: {one_line(str(error))}"
    facts = {"key": key, "name": path.name, "label": label, "status": UNKNOWN, "reason": reason, "hyper": []}
    return {**facts, "control": False, "paused": False, **dict.fromkeys(nothing)}


def stored_last(run: RunFolder, best: BestValue | None) -> tuple[str, float] | None:
    """Return the name and the last value of the most important metric, from run.json."""
    metrics = run.facts.get("metrics")
    values = {name: number_of(value) for name, value in metrics.items()} if isinstance(metrics, dict) else {}
    watched = (best.metric,) if best is not None else metric_to_watch(values)
    value = values.get(watched[0]) if watched else None
    return None if watched is None or value is None else (watched[0], value)


def short_settings(run: RunFolder) -> dict[str, Any]:
    settings = plain(settings_of(run))
    return {
        name: value if len(str(value)) <= MAX_SETTING else f"{str(value)[:MAX_SETTING]}…" for name, value in settings.items()
    }


def _stamp(folder: str, status: str | None) -> tuple[Any, ...]:
    """Return a value that changes when a run's files change.

    If the run has ended, only run.json is checked, because a new start replaces this file.
    """
    names = (NAME,) if status in ENDED else (NAME, SCALARS, EVENTS)
    return tuple(_file_stamp(f"{folder}/{name}") for name in names)


def _file_stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
