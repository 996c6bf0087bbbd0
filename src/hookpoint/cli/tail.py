"""`hookpoint tail`: follow the records and events of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from heapq import merge
from itertools import accumulate
from typing import Any

import click

from hookpoint.cli._output import coloured_status, flowed, note, print_lines, width
from hookpoint.cli._run_argument import run_argument
from hookpoint.run_folder.describe_event import describe_event
from hookpoint.run_folder.file_follower import FileFollower
from hookpoint.run_folder.formatting import MAX_CHARACTERS, duration, moment, moment_of, number, shown
from hookpoint.run_folder.json_records import number_of
from hookpoint.run_folder.run_folder import EVENTS, RUNNING, SCALARS, RunFolder
from hookpoint.storage.json_rows import OWN_KEYS

AT = {"step": "     ", "epoch": "mean ", "value": "value"}


@click.command()
@run_argument
@click.option(
    "-n", "--lines", "count", type=click.IntRange(0), default=10, show_default=True, help="Number of existing lines to print."
)
@click.option("--follow/--no-follow", default=True, help="Wait for new lines until the run ends.")
@click.option(
    "--every", "seconds", type=click.FloatRange(0.05, 3600), default=0.5, show_default=True, help="Seconds between polls."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def tail(run: RunFolder, count: int, follow: bool, seconds: float, as_json: bool) -> None:
    """Print the newest records and events of RUN, then new ones as they are written.

    Lines marked "mean" contain means over whole passes. Lines marked "value" contain single values. The command ends when the
    run ends, or when you press Ctrl-C. If a resumed run truncates its records, the command continues with the new records.

    \b
    Examples:
      hookpoint tail mine
      hookpoint tail mine -n 100 --no-follow
      hookpoint tail mine --json | jq .loss
    """
    files = [FileFollower(run.path / name) for name in (SCALARS, EVENTS)]
    rows = _in_order(file.last(count) for file in files)
    _print_rows(rows[len(rows) - min(count, len(rows)) :], as_json)
    while follow:
        now = RunFolder(run.path)
        # Read the status before the files. Otherwise, the last lines of a run that ends in between would be missed.
        status = now.status
        rows = _in_order(file.new() for file in files)
        if files[0].was_truncated:
            note("-- the run resumed from an earlier step; later records were removed --")
        _print_rows(rows, as_json)
        if status != RUNNING:
            _print_ending(now)
            return
        time.sleep(seconds)


def _in_order(groups: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the rows of several files by time. Rows from the same file keep their order, even if the clock was set back."""
    timed = [zip(accumulate((row["time"] for row in rows), max), rows, strict=True) for rows in groups]
    return [row for _, row in merge(*timed, key=lambda one: (one[0], one[1]["step"]))]


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    limit = width()
    for row in rows:
        if as_json and "event" in row:
            del row["at"]  # the reader adds "at" to each event, but events.jsonl does not contain it
        print_lines([json.dumps(row)] if as_json else _lines(row, limit))


def _lines(row: dict[str, Any], limit: int | None) -> list[str]:
    clock = moment(moment_of(row["time"]), "%H:%M:%S") or "        "
    is_event = isinstance(row.get("event"), str)
    kind = "event" if is_event else AT.get(row["at"], shown(row["at"]))
    prefix = f"{clock}  epoch {row['epoch']}  step {row['step']}  {kind}  "
    if is_event:
        return flowed(prefix, describe_event(row).split(" "), limit, gap=" ")
    named = ((name, number_of(value)) for name, value in row.items() if name not in OWN_KEYS)
    longest = MAX_CHARACTERS if limit is None else limit // 2
    return flowed(prefix, [f"{shown(name, longest)} {number(value)}" for name, value in named if value is not None], limit)


def _print_ending(run: RunFolder) -> None:
    because = f": {shown(run.reason)}" if run.reason else ""
    where = f" at epoch {run.epoch}, step {run.step}" if run.step is not None else ""
    took = f" after {duration(run.seconds)}" if run.seconds is not None else ""
    note(f"-- {coloured_status(run.status)}{where}{took}{because} --")
