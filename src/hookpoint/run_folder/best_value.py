"""Best value: a metric's best value, stored by the run or guessed from its records."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookpoint.core.log.best import mode_of
from hookpoint.run_folder._plain_file import NEWEST_BYTES, newest_lines
from hookpoint.run_folder.json_records import number_of, records_of

FIRST = ("val_loss", "loss")


@dataclass(frozen=True, slots=True)
class BestValue:
    """The best value of a metric, its step, and its source: "run", "events", "guess" or "newest".

    "guess" means the best value in all records, and "newest" means the best value near the end of a long file.
    """

    metric: str
    value: float
    step: int | None
    mode: str | None
    source: str

    @classmethod
    def of(cls, metric: str, facts: Any, source: str) -> BestValue | None:
        """Create a BestValue from `facts`, which was read from a file. Return None if `facts` contains no valid value."""
        if not isinstance(facts, dict):
            return None
        value, step, mode = number_of(facts.get("value")), facts.get("step"), facts.get("mode")
        if value is None or math.isnan(value):
            return None
        return cls(metric, value, step if type(step) is int else None, mode if mode in ("min", "max") else None, source)


def metric_to_watch(names: Collection[str]) -> tuple[str, str] | None:
    """Return the name and the mode ("min" or "max") of the most important metric. Return None if no name implies a mode.

    >>> metric_to_watch(["rate", "loss", "val_loss"]), metric_to_watch(["rate", "val_acc"]), metric_to_watch(["rate"])
    (('val_loss', 'min'), ('val_acc', 'max'), None)
    """
    for name in (*(name for name in FIRST if name in names), *names):
        with suppress(ValueError):
            return name, mode_of(name, "auto")
    return None


def guess_best(path: Path, names: Collection[str]) -> BestValue | None:
    """Return the most important metric's best value, from its epoch means if there are any, otherwise from all of its values.

    Reads only the last 8 MiB of the file. If the file is longer, the source is "newest", not "guess".
    """
    watched = metric_to_watch(names)
    if watched is None:
        return None
    lines = [*newest_lines(path)][::-1]
    with suppress(OSError):  # the file was deleted
        source = "guess" if path.stat().st_size <= NEWEST_BYTES else "newest"
        return _best(lines, *watched, "epoch", source) or _best(lines, *watched, None, source)
    return None


def _best(lines: Iterable[bytes], metric: str, mode: str, at: str | None, source: str) -> BestValue | None:
    key = json.dumps(metric).encode()
    kind = b"" if at is None else f'"at": {json.dumps(at)}'.encode()  # the exact text that JSONWriter writes.
    rows = records_of([line for line in lines if key in line and kind in line])  # other lines are not parsed
    values = [(number_of(row.get(metric)), row["step"]) for row in rows if row is not None and at in (None, row["at"])]
    numbers = [(value, step) for value, step in values if value is not None and not math.isnan(value)]
    best = (min if mode == "min" else max)(numbers, key=lambda pair: pair[0], default=None)
    return None if best is None else BestValue(metric, *best, mode, source)
