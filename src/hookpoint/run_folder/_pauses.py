"""Pauses: how long commands have paused a run, from its events."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hookpoint.run_folder._plain_file import newest_lines
from hookpoint.run_folder.json_records import record_of

MAX_EVENTS = 20_000  # how far back to search, in events


class Pauses(NamedTuple):
    """The duration of a run's completed pauses, and the time at which the current pause began, if the run is paused."""

    seconds: float = 0.0
    began: float | None = None

    def until(self, time: float) -> float:
        """Return how long the run has been paused until a time."""
        return self.seconds + (0.0 if self.began is None else max(time - self.began, 0.0))


def pauses_of(path: Path, since: float) -> Pauses:
    """Return a run's pauses since a time, from the end of its events. Commands that were not applied do not count."""
    found: list[tuple[str, float]] = []
    for line in islice(newest_lines(path), MAX_EVENTS):
        if b'"control"' not in line or (event := record_of(line)) is None or event.get("event") != "control":
            continue
        if event["time"] < since:
            break
        if event.get("do") in ("pause", "resume") and event.get("status") == "applied":
            found.append((event["do"], event["time"]))
    seconds, began = 0.0, None
    for do, time in reversed(found):
        if do == "pause" and began is None:
            began = time
        elif do == "resume" and began is not None:
            seconds, began = seconds + max(time - began, 0.0), None
    return Pauses(seconds, began)
