"""LiveCurves: the curves of a run for the board's web page, either exact or as a preview."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from hookpoint.board._indexer import Indexer
from hookpoint.plots.panels import choose_panels
from hookpoint.run_folder.curve_columns import Key
from hookpoint.run_folder.curve_index import load_index
from hookpoint.run_folder.curve_reader import CurveReader
from hookpoint.run_folder.curve_view import CurveView, Preview, preview_of, thinned, views_of
from hookpoint.run_folder.epoch_ends import MAX_PAIRS, epoch_ends_of
from hookpoint.run_folder.file_stamp import FileStamp

MAX_UNREAD_BYTES = 4 * 2**20  # if the file has more unread bytes than this, a separate process reads it
READ_SECONDS = 0.2  # reading time per request; later requests read the rest
SLOW = "read slowly, because the index process failed: {}"
MAX_CURVES = 60  # the most metrics to return if a request does not name any


class LiveCurves:
    """Read a run's scalars as the file grows. The methods are thread-safe."""

    def __init__(self, path: Path, indexer: Indexer) -> None:
        self._path = path
        self._indexer = indexer
        self._reader = CurveReader(path)
        self._lock = Lock()
        self._preview: Preview | None = None
        self._has_looked_for_index = False
        self._is_indexing = False
        self._index_problem = ""  # why the index process failed; if set, this process reads the file
        self._read_problem = ""
        self._stamp: FileStamp | None = None  # detects changes since the whole file was read
        self._size = 0
        self._read_bytes = 0
        self._has_more = True
        self.version = time.time_ns() // 10**6  # changes whenever the curves change or the server restarts
        self._first_generation = self.version

    @property
    def points(self) -> int:
        """Number of values in memory."""
        return self._reader.points

    def update(self) -> int:
        """Spend a short time reading new records. Return `version`, a number that changes whenever the curves change."""
        with self._lock:
            if not self._is_indexing:
                problem = ""
                try:
                    self._update()
                except FileNotFoundError:
                    pass
                except OSError as error:
                    problem = error.strerror or str(error)
                self.version += problem != self._read_problem
                self._read_problem = problem
            return self.version

    def _update(self) -> None:
        stamp = FileStamp.of(self._path)
        if stamp == self._stamp:
            return
        self._stamp, self._size = None, stamp.size
        if self._size - self._reader.position > MAX_UNREAD_BYTES and not self._has_looked_for_index:
            self._has_looked_for_index = True
            load_index(self._reader, self._indexer.index_path(self._path))
        if self._size - self._reader.position > MAX_UNREAD_BYTES and not self._index_problem:
            self._preview = preview_of(self._path)
            self._is_indexing, self._read_bytes = True, self._reader.position
            self.version += 1
            self._indexer.request(self._path, self._progress, self._done)
            return
        before = self._reader.position, self._has_more
        self._has_more = self._reader.read(READ_SECONDS)
        self._read_bytes = self._reader.position
        self.version += (self._reader.position, self._has_more) != before
        if not self._has_more and stamp.is_settled:
            self._stamp = stamp

    def _progress(self, read_bytes: int) -> None:
        self._read_bytes = read_bytes
        self.version += 1

    def _done(self, problem: str) -> None:
        with self._lock:
            if not problem and not load_index(self._reader, self._indexer.index_path(self._path)):
                problem = "the index is not valid"
            self._index_problem, self._is_indexing, self._preview = problem, False, None
            self.version += 1

    def answer(self, names: Collection[str] | None, low: float, high: float, pixels: int) -> dict[str, Any]:
        """Return curves for the page: arrays of steps, times, minima, maxima and means, in at most `pixels` buckets.

        `names` selects metrics. By default, the most important metrics are returned. In the returned dict, `complete` is the
        fraction of the file that has been read. `exact` tells whether the minima and maxima are computed from all values in the
        range. `all` contains the names of all metrics, and `epochs` contains (last step, epoch) pairs. `generation` changes
        when the file is truncated or replaced. Curves that were returned before this change may be wrong. `problem` says why
        the file cannot be read, and `note` says why reading it is slow.
        """
        self.update()
        with self._lock:
            is_preview = self._preview is not None
            known = self._reader.curves if self._preview is None else self._preview.curves
            wanted = _most_important(known) if names is None else frozenset(names)
            keys = [key for key in known if key[0] in wanted]
            curves = [_curve(key, view) for key, view in self._views(keys, low, high, pixels).items()]
            complete = 1.0 if not self._size else min(1.0, self._read_bytes / self._size)
            is_complete = not is_preview and not self._has_more and not self._read_problem
            return {
                "complete": 1.0 if is_complete else min(complete, 0.999),
                "preview": is_preview,
                "exact": is_complete and all(curve["exact"] for curve in curves),
                "version": self.version,
                "all": sorted({name for name, _ in known}),
                "generation": self._first_generation + self._reader.truncations,
                "epochs": epoch_ends_of(self._reader.curves) if self._preview is None else self._preview.epochs[-MAX_PAIRS:],
                "problem": self._read_problem,
                "note": "" if is_complete or not self._index_problem else SLOW.format(self._index_problem),
                "bad_lines": self._reader.bad_lines,
                "curves": curves,
            }

    def _views(self, keys: Sequence[Key], low: float, high: float, pixels: int) -> dict[Key, CurveView]:
        if self._preview is None:
            views = views_of(self._reader, keys, low=low, high=high, pixels=pixels)
            return {key: CurveView(view.buckets, view.exact and not self._has_more) for key, view in views.items()}
        known = self._preview.curves
        inside = {key: [one for one in known[key] if one.first_step <= high and one.last_step >= low] for key in keys}
        return {key: CurveView(thinned(buckets, pixels), exact=False) for key, buckets in inside.items()}


def _curve(key: Key, view: CurveView) -> dict[str, Any]:
    buckets = view.buckets
    return {
        "name": key[0],
        "at": key[1],
        "exact": view.exact,
        "count": sum(bucket.size for bucket in buckets),
        "x": [bucket.first_step for bucket in buckets],
        "x1": [bucket.last_step for bucket in buckets],
        "t": [round(bucket.time, 3) for bucket in buckets],
        "lo": [_finite(bucket.low) for bucket in buckets],
        "hi": [_finite(bucket.high) for bucket in buckets],
        "mean": [_finite(bucket.mean) for bucket in buckets],
        "bad": [bucket.size - bucket.finite for bucket in buckets],
    }


def _most_important(known: Collection[Key]) -> Collection[str]:
    """Return the names of the metrics to show if the page does not select any."""
    names = {name for name, _ in known}
    if len(names) <= MAX_CURVES:
        return names
    groups, rest = choose_panels(names)
    chosen = [name for group in groups for name in group.names]
    return frozenset([*chosen, *rest][:MAX_CURVES])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
