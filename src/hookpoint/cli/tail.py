"""`hookpoint tail`: what a run logs and what happens, as it comes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import click

from hookpoint.cli.output import flowed, note, put, status_style, width
from hookpoint.cli.run_argument import run_argument
from hookpoint.run_folder.describe_event import sentence
from hookpoint.run_folder.file_follower import Following
from hookpoint.run_folder.formatting import LONGEST, duration, moment, moment_of, number, shown
from hookpoint.run_folder.run_folder import EVENTS, RUNNING, SCALARS, RunFolder
from hookpoint.run_folder.scalars_file import OWN_KEYS, number_of

AT = {"step": "     ", "epoch": "mean ", "value": "value"}


@click.command()
@run_argument
@click.option("-n", "--lines", "count", type=click.IntRange(0), default=10, show_default=True, help="How many, to begin with.")
@click.option("--follow/--no-follow", default=True, help="Go on until the run ends, or print what is there and end.")
@click.option(
    "--every", "seconds", type=click.FloatRange(0.05, 3600), default=0.5, show_default=True, help="Seconds between looks."
)
@click.option("--json", "as_json", is_flag=True, help="Print each record and event as a line of JSON.")
def tail(run: RunFolder, count: int, follow: bool, seconds: float, as_json: bool) -> None:
    """Print what RUN logged last, then what it logs, and what happens, as it comes.

    "mean" marks means of whole passes, "value" single values. Ends with the run, or with Ctrl-C. Where a
    resumed run cuts its records back, it goes on with what is new.

    \b
    Examples:
      hookpoint tail mine
      hookpoint tail mine -n 100 --no-follow
      hookpoint tail mine --json | jq .loss
    """
    files = [Following(run.path / name) for name in (SCALARS, EVENTS)]
    rows = _in_order(file.last(count) for file in files)
    _put(rows[len(rows) - min(count, len(rows)) :], as_json)
    while follow:
        now = RunFolder(run.path)
        status = now.status  # before the last look, so that nothing written before the end is missed
        rows = _in_order(file.new() for file in files)
        if files[0].was_cut:
            note("-- the run goes on from an earlier step; what was logged after it is cut off --")
        _put(rows, as_json)
        if status != RUNNING:
            _say_how_it_ended(now)
            return
        time.sleep(seconds)


def _in_order(given: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return sorted((row for rows in given for row in rows), key=lambda row: (row["time"], row["step"]))


def _put(rows: list[dict[str, Any]], as_json: bool) -> None:
    limit = width()
    for row in rows:
        if as_json and "event" in row:
            del row["at"]  # which events do not have
        put([json.dumps(row)] if as_json else _lines(row, limit))


def _lines(row: dict[str, Any], limit: int | None) -> list[str]:
    clock = moment(moment_of(row["time"]), "%H:%M:%S") or "        "
    is_event = isinstance(row.get("event"), str)
    kind = "event" if is_event else AT.get(row["at"], shown(row["at"]))
    prefix = f"{clock}  epoch {row['epoch']}  step {row['step']}  {kind}  "
    if is_event:
        return flowed(prefix, sentence(row).split(" "), limit, gap=" ")
    named = ((name, number_of(value)) for name, value in row.items() if name not in OWN_KEYS)
    longest = LONGEST if limit is None else limit // 2
    return flowed(prefix, [f"{shown(name, longest)} {number(value)}" for name, value in named if value is not None], limit)


def _say_how_it_ended(run: RunFolder) -> None:
    because = f": {shown(run.reason)}" if run.reason else ""
    where = f" at epoch {run.epoch}, step {run.step}" if run.step is not None else ""
    took = f" after {duration(run.seconds)}" if run.seconds is not None else ""
    note(f"-- {status_style(run.status)}{where}{took}{because} --")
