"""CurveStore: keep the curves of recently viewed runs in memory."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock

from hookpoint.board._indexer import Indexer
from hookpoint.board._live_curves import LiveCurves
from hookpoint.run_folder.run_folder import SCALARS

MAX_POINTS = 1_500_000  # limit for all curves together, about 60 MB
MAX_RUNS = 2_000


class CurveStore:
    """Keep the curves of the most recently used runs, and forget the others when a limit is reached."""

    def __init__(self, indexer: Indexer) -> None:
        self._indexer = indexer
        self._curves: OrderedDict[str, LiveCurves] = OrderedDict()
        self._lock = Lock()

    def of(self, key: str, path: Path) -> LiveCurves:
        """Return the curves of a run."""
        with self._lock:
            curves = self._curves.get(key)
            if curves is None:
                curves = self._curves[key] = LiveCurves(path / SCALARS, self._indexer)
                self._limit()
            self._curves.move_to_end(key)
            return curves

    def forget(self, key: str) -> None:
        with self._lock:
            self._curves.pop(key, None)

    def _limit(self) -> None:
        points = {key: curves.points for key, curves in self._curves.items()}
        total = sum(points.values())
        while len(self._curves) > 1 and (total > MAX_POINTS or len(self._curves) > MAX_RUNS):
            key, _ = self._curves.popitem(last=False)
            total -= points[key]
