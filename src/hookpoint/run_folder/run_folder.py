"""RunFolder: read a run's state from its folder, on demand."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from hookpoint.run_folder._plain_file import newest_lines
from hookpoint.run_folder._scalars_file import Last, last_of, rows_backwards
from hookpoint.run_folder.best_value import BestValue, guess_best, metric_to_watch
from hookpoint.run_folder.checkpoint_list import Listed, checkpoints_of, newest_step
from hookpoint.run_folder.formatting import moment_of
from hookpoint.run_folder.json_records import number_of, record_of
from hookpoint.storage.checkpoint.layout import BEST, CHECKPOINTS
from hookpoint.storage.run_file import NAME, STATUSES, problem_of, read_run_file
from hookpoint.storage.workdir.lock import Holder, holder_of

RUNNING, FINISHED, STOPPED, FAILED, KILLED, UNKNOWN = "running", "finished", "stopped", "failed", "killed", "unknown"
ALL_STATUSES = (RUNNING, FINISHED, STOPPED, FAILED, KILLED, UNKNOWN)
SCALARS, EVENTS = "scalars.jsonl", "events.jsonl"
MAX_EVENTS = 20_000  # search only this many of the newest events for the best value and for pauses


class RunFolder:
    """A run's state. Files are read on demand, and nothing is written.

    Files may be untrusted, incomplete, or in use by a running process. Invalid content is ignored. Values are cached; create a
    new RunFolder to read them again. Only the end of growing files is read.
    """

    is_remote = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def where(self) -> str:
        """The run's path for display, or its URL if it is in remote storage."""
        return os.fspath(self.path)

    # Identity

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The contents of run.json. Empty if there is no such file."""
        return read_run_file(self.path)

    @cached_property
    def is_run(self) -> bool:
        """Whether the folder contains run.json, scalars or checkpoints."""
        return bool(self.facts) or self.last.exists or newest_step(self.path) is not None

    @property
    def name(self) -> str:
        name = self.facts.get("name")
        # "run" is the default name, so use the folder's name
        return name if isinstance(name, str) and name not in ("", "run") else self.path.resolve().name

    @cached_property
    def holder(self) -> Holder | None:
        """The process that is writing to the folder."""
        return holder_of(self.path)

    @cached_property
    def status(self) -> str:
        """The status in run.json, or "killed" if the status is "running" but no process is writing to the folder."""
        status = self.facts.get("status")
        if status == RUNNING and self.holder is None:
            status = read_run_file(self.path).get("status")  # read again, because the run may have ended meanwhile
            if status == RUNNING:
                return KILLED
            del self.facts
        if status in STATUSES:
            return str(status)
        return RUNNING if self.holder is not None else UNKNOWN

    @property
    def reason(self) -> str:
        """Why the run ended or, if run.json is invalid, why it cannot be read."""
        reason = self.facts.get("reason") if self.facts else problem_of(self.path)
        return reason if isinstance(reason, str) else ""

    def summary(self) -> dict[str, Any]:
        """Return the state of the run as a dict that can be converted to JSON."""
        started = None if self.started is None else self.started.isoformat()
        names = ("name", "status", "reason", "epoch", "epochs", "step", "seconds")
        return {**{name: getattr(self, name) for name in names}, "path": self.where, "started": started}

    # Progress

    @cached_property
    def last(self) -> Last:
        """The newest record and the newest value of each metric, from the end of scalars.jsonl."""
        return last_of(self.path / SCALARS)

    @property
    def epoch(self) -> int | None:
        return max((epoch for epoch in (self._integer("epoch"), self.last.epoch) if epoch is not None), default=None)

    @property
    def epochs(self) -> int | None:
        """The planned number of epochs, if known."""
        return self._integer("epochs")

    @property
    def step(self) -> int | None:
        steps = [step for step in (self._integer("step"), self.last.step, newest_step(self.path)) if step is not None]
        has_ended = self.status in (FINISHED, STOPPED, FAILED)
        return steps[0] if steps and has_ended else max(steps, default=None)

    @property
    def values(self) -> dict[str, float]:
        """The newest value of each metric, from scalars.jsonl if possible, otherwise from run.json."""
        if self.last.points:
            return {name: point.value for name, point in self.last.points.items()}
        return {name: value for name, raw in self._dict("metrics").items() if (value := number_of(raw)) is not None}

    @property
    def last_value(self) -> tuple[str, float] | None:
        """The newest value of the most important metric.

        The most important metric is the metric of `best`. If `best` is None, the metric is chosen by its name.
        """
        values, best = self.values, self.best
        watched = metric_to_watch(values)
        metric = best.metric if best is not None else watched[0] if watched is not None else next(iter(values), "")
        return (metric, values[metric]) if metric in values else None

    @cached_property
    def best(self) -> BestValue | None:
        """The best value that the run has recorded in its events or in run.json, or else a guess from scalars.jsonl.

        Until the run has ended, events are newer than run.json.
        """
        return self.stated_best or guess_best(self.path / SCALARS, self.values)

    @cached_property
    def stated_best(self) -> BestValue | None:
        """The best value, if the run has recorded one."""
        stored = self._stored_best()
        event = self._event_best() if stored is None or self.status in (RUNNING, KILLED) else None
        return event or stored

    @property
    def all_best(self) -> dict[str, BestValue]:
        """The best values in run.json, by metric."""
        values = self._dict("best").items()
        return {name: best for name, value in values if (best := BestValue.of(name, value, "run")) is not None}

    # Times

    @property
    def started(self) -> datetime | None:
        """The time of the first start or, without run.json, the time of the oldest record."""
        return moment_of(self.facts.get("started")) or moment_of(self.last.first_time)

    @property
    def seconds(self) -> float | None:
        """The training time over all starts, without pauses.

        Without a valid run.json, this is the time from the first to the last record.
        """
        if not self.facts:
            first, last = self.last.first_time, self.last.time
            return None if first is None or last is None else last - first
        stored = self._elapsed
        if self.status not in (RUNNING, KILLED):
            return stored if "elapsed_seconds" in self.facts else None
        began, until = self._began, time.time() if self.status == RUNNING else self.last.time
        if began is None or until is None:
            return stored
        return stored + max(until - began.timestamp() - self._pauses.until(until), 0.0)

    @property
    def is_paused(self) -> bool:
        """Whether a command has paused the run, and no later command has resumed it."""
        return self.status == RUNNING and self._pauses.began is not None

    @property
    def _elapsed(self) -> float:
        """The training time in run.json.

        Until the run has ended, run.json contains only the training time of earlier starts. After
        that, it contains the training time of all starts.
        """
        stored = number_of(self.facts.get("elapsed_seconds"))
        return stored if stored is not None and math.isfinite(stored) else 0.0

    @property
    def _began(self) -> datetime | None:
        """The time of the last start."""
        resumed = self.facts.get("resumed")
        return moment_of(resumed[-1] if isinstance(resumed, list) and resumed else self.facts.get("started"))

    @cached_property
    def _pauses(self) -> _Pauses:
        began = self._began
        return _Pauses() if began is None else _pauses_of(self.path / EVENTS, began.timestamp())

    # Checkpoints and events

    @cached_property
    def checkpoints(self) -> list[Listed]:
        return checkpoints_of(self.path)

    @property
    def best_checkpoints(self) -> dict[str, str]:
        """Maps each metric to the checkpoint with its best value.

        This is the newest checkpoint with a best-… tag for the metric in its manifest.
        """
        return {
            str(value.get("metric")): checkpoint.path.name
            # The step-… folders come last in this order. They therefore take precedence over the best-… folders.
            for checkpoint in sorted(self.checkpoints, key=lambda checkpoint: not checkpoint.is_best)
            for tag, value in checkpoint.measured.items()
            if tag.startswith(BEST)
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events, newest first."""
        return (row for row in rows_backwards(self.path / EVENTS) if isinstance(row.get("event"), str))

    def _stored_best(self) -> BestValue | None:
        best = self.all_best
        preferred = [name for name in best if name.startswith("val")] or list(best)
        return best[preferred[0]] if preferred else None

    def _event_best(self) -> BestValue | None:
        # Parse only the lines that contain "best".
        lines = (line for line in islice(newest_lines(self.path / EVENTS), MAX_EVENTS) if b'"best"' in line)
        for event in (row for line in lines if (row := record_of(line)) is not None):
            if event.get("event") == "best" and isinstance(event.get("metric"), str) and event["step"] <= (self.step or 0):
                return BestValue.of(event["metric"], event, "events")
        return None

    def _dict(self, name: str) -> dict[str, Any]:
        value = self.facts.get(name)
        return value if isinstance(value, dict) else {}

    def _integer(self, name: str) -> int | None:
        value = self.facts.get(name)
        return value if type(value) is int else None


def looks_like_a_run(folder: str, names: set[str]) -> bool:
    """Return whether a folder with these file names is a run folder. Reads as little as possible."""
    return (
        (SCALARS in names and os.path.isfile(os.path.join(folder, SCALARS)))
        or (NAME in names and bool(read_run_file(folder)))
        or (CHECKPOINTS in names and newest_step(Path(folder)) is not None)
    )


class _Pauses(NamedTuple):
    """The duration of a run's completed pauses, and the time at which the current pause began, if the run is paused."""

    seconds: float = 0.0
    began: float | None = None

    def until(self, moment: float) -> float:
        """Return the total duration of all pauses up to the time `moment`."""
        return self.seconds + (0.0 if self.began is None else max(moment - self.began, 0.0))


def _pauses_of(path: Path, since: float) -> _Pauses:
    """Return a run's pauses after the time `since`.

    Reads only the newest events, and ignores commands that were not applied.
    """
    found: list[tuple[str, float]] = []
    for line in islice(newest_lines(path), MAX_EVENTS):
        if b'"control"' not in line or (event := record_of(line)) is None or event.get("event") != "control":
            continue
        if event["time"] < since:
            break
        if event.get("do") in ("pause", "resume") and event.get("status") == "applied":
            found.append((event["do"], event["time"]))
    seconds, began = 0.0, None
    for do, moment in reversed(found):
        if do == "pause" and began is None:
            began = moment
        elif do == "resume" and began is not None:
            seconds, began = seconds + max(moment - began, 0.0), None
    return _Pauses(seconds, began)
