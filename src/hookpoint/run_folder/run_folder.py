"""RunFolder: what the folder of a run says of it, read as it is needed, and believed only where it makes sense."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from hookpoint.run_folder._tail_reader import Last, last_of, rows_backwards
from hookpoint.run_folder.best_value import BestValue, guessed, metric_to_watch
from hookpoint.run_folder.checkpoint_list import Listed, checkpoints_of, newest_step
from hookpoint.run_folder.formatting import moment_of
from hookpoint.run_folder.scalars_file import number_of
from hookpoint.storage.checkpoint.layout import BEST, CHECKPOINTS
from hookpoint.storage.run_file import NAME, STATUSES, read_run_file
from hookpoint.storage.workdir.lock import Holder, holder_of

ALL_STATUSES = RUNNING, FINISHED, STOPPED, FAILED, KILLED, UNKNOWN = (
    "running",
    "finished",
    "stopped",
    "failed",
    "killed",
    "unknown",
)
SCALARS, EVENTS = "scalars.jsonl", "events.jsonl"
EVENTS_LOOKED_AT = 2_000


class RunFolder:
    """What a folder says of the run in it. Nothing is written, and nothing is read before it is asked for.

    Files may be anybody's, torn, or just being written: what makes no sense is left out. Values are kept once read; for what
    is true now make another RunFolder. Of files that grow only the end is read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    # What it is

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What run.json says; nothing where there is none of ours."""
        return facts_of(self.path)

    @cached_property
    def is_run(self) -> bool:
        """Whether there is a run at all: run.json, scalars or checkpoints of ours."""
        return bool(self.facts) or self.last.is_there or newest_step(self.path) is not None

    @property
    def name(self) -> str:
        name = self.facts.get("name")
        is_told = isinstance(name, str) and name not in ("", "run")  # which is what a loop is called unless told otherwise
        return str(name) if is_told else self.path.resolve().name

    @cached_property
    def holder(self) -> Holder | None:
        """The process that writes to it now."""
        return holder_of(self.path)

    @cached_property
    def status(self) -> str:
        """How it stands: what run.json says, and "killed" where that says "running" and nobody writes to the folder."""
        said = self.facts.get("status")
        if said == RUNNING and self.holder is None:
            said = facts_of(self.path).get("status")  # it may have ended between one look and the other
            if said == RUNNING:
                return KILLED
            del self.facts
        if said in STATUSES:
            return str(said)
        return RUNNING if self.holder is not None else UNKNOWN

    @property
    def reason(self) -> str:
        reason = self.facts.get("reason")
        return reason if isinstance(reason, str) else ""

    # Where it is

    @cached_property
    def last(self) -> Last:
        """The newest record, and the newest value of each metric, from the end of scalars.jsonl."""
        return last_of(self.path / SCALARS)

    @property
    def epoch(self) -> int | None:
        known = [one for one in (self._integer("epoch"), self.last.epoch) if one is not None]
        return max(known, default=None)

    @property
    def epochs(self) -> int | None:
        """How many epochs it is to have, if that is known."""
        return self._integer("epochs")

    @property
    def step(self) -> int | None:
        known = [one for one in (self._integer("step"), self.last.step, newest_step(self.path)) if one is not None]
        if self.status in (FINISHED, STOPPED, FAILED) and known:
            return known[0]
        return max(known, default=None)

    @property
    def values(self) -> dict[str, float]:
        """The newest value of each metric, by what was logged, or else by run.json."""
        if self.last.points:
            return {name: point.value for name, point in self.last.points.items()}
        kept = self.facts.get("metrics")
        pairs = kept.items() if isinstance(kept, dict) else ()
        return {name: value for name, given in pairs if (value := number_of(given)) is not None}

    @property
    def last_value(self) -> tuple[str, float] | None:
        """The metric that says most of the run, and its newest value: that of the best value, or else one by its name."""
        values, best = self.values, self.best
        watched = metric_to_watch(values)
        metric = best.metric if best is not None else watched[0] if watched is not None else next(iter(values), "")
        return (metric, values[metric]) if metric in values else None

    @cached_property
    def best(self) -> BestValue | None:
        """The best value: as run.json has it, or as events say, or a guess. What the run kept is newest when it has ended."""
        kept = self._best_kept()
        told = self._best_told() if kept is None or self.status in (RUNNING, KILLED) else None
        return told or kept or guessed(self.path / SCALARS, self.values)

    @property
    def all_best(self) -> dict[str, BestValue]:
        """Every best value that the run kept, by metric."""
        kept = self.facts.get("best")
        pairs = kept.items() if isinstance(kept, dict) else ()
        return {name: best for name, one in pairs if (best := BestValue.of(name, one, "run")) is not None}

    # When it was

    @property
    def started(self) -> datetime | None:
        """When it was started for the first time; without run.json, when its folder's oldest record was written."""
        return moment_of(self.facts.get("started")) or moment_of(self.last.first_time)

    @property
    def seconds(self) -> float | None:
        """How long it has trained, all its starts together; of one without run.json, from the first to the last record."""
        kept = self.facts.get("elapsed_seconds")
        elapsed = float(kept) if isinstance(kept, int | float) else 0.0
        if self.status in (RUNNING, KILLED) and self.facts:
            resumed = self.facts.get("resumed")
            began = moment_of(resumed[-1]) if isinstance(resumed, list) and resumed else moment_of(self.facts.get("started"))
            until = time.time() if self.status == RUNNING else self.last.time
            return elapsed if began is None or until is None else elapsed + max(until - began.timestamp(), 0.0)
        if not self.facts:
            first, last = self.last.first_time, self.last.time
            return None if first is None or last is None else last - first
        return elapsed if kept is not None else None

    # What else is there

    @cached_property
    def checkpoints(self) -> list[Listed]:
        return checkpoints_of(self.path)

    @property
    def best_checkpoints(self) -> dict[str, str]:
        """Which checkpoint has the best value of a metric, as manifests say: of those with a best-… tag, the newest."""
        best: dict[str, str] = {}
        for one in sorted(self.checkpoints, key=lambda one: not one.is_best):  # best-… folders first: a step's name is better
            best |= {str(value.get("metric")): one.path.name for tag, value in one.measured.items() if tag.startswith(BEST)}
        return best

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what happened, the newest first."""
        return (row for row in rows_backwards(self.path / EVENTS) if isinstance(row.get("event"), str))

    def _best_kept(self) -> BestValue | None:
        best = self.all_best
        preferred = [name for name in best if name.startswith("val")] or list(best)
        return best[preferred[0]] if preferred else None

    def _best_told(self) -> BestValue | None:
        for number, event in enumerate(self.events()):
            if number == EVENTS_LOOKED_AT:
                return None
            if event["event"] == "best" and isinstance(event.get("metric"), str) and event["step"] <= (self.step or 0):
                return BestValue.of(event["metric"], event, "events")
        return None

    def _integer(self, name: str) -> int | None:
        value = self.facts.get(name)
        return value if type(value) is int else None


def facts_of(folder: Path) -> dict[str, Any]:
    """Return what run.json in a folder says, or nothing where it is not one of ours."""
    return read_run_file(folder) or {}


def looks_like_a_run(folder: str, names: set[str]) -> bool:
    """Say whether a folder in which these names are is one of a run, reading as little as that takes."""
    if NAME in names and facts_of(Path(folder)):
        return True
    if SCALARS in names and os.path.isfile(os.path.join(folder, SCALARS)):
        return True
    return CHECKPOINTS in names and newest_step(Path(folder)) is not None
