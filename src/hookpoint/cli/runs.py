"""`hookpoint runs`: list the runs in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hookpoint.cli._output import COLOURS, Column, note, print_json, print_lines, table, width
from hookpoint.core.text.secrets import masked
from hookpoint.run_folder.best_value import BestValue
from hookpoint.run_folder.command_error import USAGE, CommandError
from hookpoint.run_folder.find_run import default_folder, find_runs
from hookpoint.run_folder.formatting import duration, moment, number, shown
from hookpoint.run_folder.run_folder import ALL_STATUSES, RunFolder
from hookpoint.run_folder.run_scanner import LEVELS
from hookpoint.storage.remote.remote_folder import is_url

COLUMNS = (
    Column("name", min_width=20),
    Column("status", styles=COLOURS),
    Column("epoch", right=True, drop=1),
    Column("step", right=True, drop=2),
    Column("best", min_width=12, drop=3),
    Column("last", right=True, drop=6),
    Column("started", drop=4),
    Column("duration", right=True, drop=5),
)

Key = Callable[[RunFolder, str], Any]


def _value(best: BestValue) -> float:
    """Return a key that sorts better values first."""
    return -best.value if best.mode == "max" else best.value


SORTS: dict[str, Key] = {
    "name": lambda run, name: name,
    "status": lambda run, name: run.status,
    "epoch": lambda run, name: run.epoch,
    "step": lambda run, name: run.step,
    "best": lambda run, name: None if run.best is None else (run.best.metric, _value(run.best)),
    "started": lambda run, name: run.started,
    "duration": lambda run, name: run.seconds,
}


@click.command()
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path())
@click.option("-s", "--sort", type=click.Choice(list(SORTS)), default="started", show_default=True, help="Column to sort by.")
@click.option("-r", "--reverse", is_flag=True, help="Reverse the order.")
@click.option("-a", "--all", "previous", is_flag=True, help="Also list the earlier runs in previous/ folders.")
@click.option("--status", "wanted", type=click.Choice(ALL_STATUSES), multiple=True, help="Show only this status; repeatable.")
@click.option("--levels", type=click.IntRange(0, 32), default=LEVELS, show_default=True, help="Levels of subfolders to search.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def runs(
    folder: str | None, sort: str, reverse: bool, previous: bool, wanted: tuple[str, ...], levels: int, as_json: bool
) -> None:
    """List the runs in DIR, a folder or a URL. The default is runs/ if it exists, else the current folder.

    A run is "killed" if its run.json says that it is running but no process is writing to it, and "unknown" if it has no valid
    run.json. The column "best" shows the best value that the run itself recorded. If the run did not record a best value, the
    column shows the minimum or maximum in scalars.jsonl, depending on the metric's name; "newest" means that only the end of a
    long file was read. The column "last" shows the newest value of the same metric. If there is no best value, the column
    "last" also shows the metric's name. On a narrow terminal, some columns are dropped. --json and pipes show all columns.

    \b
    Examples:
      hookpoint runs
      hookpoint runs experiments --sort best
      hookpoint runs --status running --json
      hookpoint runs s3://bucket/runs
    """
    where = os.fspath(default_folder()) if folder is None else folder
    pairs = _runs_in(where, levels, previous)
    pairs = _sorted([(run, name) for run, name in pairs if not wanted or run.status in wanted], SORTS[sort], reverse)
    if as_json:
        print_json([_facts(run, name) for run, name in pairs])
    elif pairs:
        print_lines(table(COLUMNS, [_row(run, name) for run, name in pairs], width()))
    else:
        note(f"no runs in {shown(masked(where))}" + (f" that are {' or '.join(wanted)}" if wanted else ""))


def _runs_in(where: str, levels: int, previous: bool) -> list[tuple[RunFolder, str]]:
    """Return the runs in a folder, or at a URL in remote storage, each with its relative path."""
    if os.path.isdir(where):
        folders = find_runs(Path(where), levels=levels, previous=previous)
        return [(RunFolder(path), os.path.relpath(path, where)) for path in folders]
    if not is_url(where):
        raise CommandError(f"there is no folder {shown(where)}", USAGE)
    from hookpoint.run_folder.remote.remote_run import remote_runs

    return list(remote_runs(where, levels=levels))


def _sorted(pairs: list[tuple[RunFolder, str]], key: Key, reverse: bool) -> list[tuple[RunFolder, str]]:
    """Return the runs, sorted by `key`. Runs for which `key` returns None come last, even with `reverse`."""
    keyed = sorted((pair for pair in pairs if key(*pair) is not None), key=lambda pair: (key(*pair), pair[1]), reverse=reverse)
    return [*keyed, *(pair for pair in pairs if key(*pair) is None)]


def _row(run: RunFolder, name: str) -> tuple[str, ...]:
    best, last = run.best, run.last_value
    of = f"/{run.epochs}" if run.epochs is not None else ""
    return (
        shown(run.path.resolve().name if name == "." else name),
        run.status,
        "" if run.epoch is None else f"{run.epoch}{of}",
        "" if run.step is None else str(run.step),
        "" if best is None else f"{shown(best.metric)} {number(best.value)}{' (newest)' if best.source == 'newest' else ''}",
        "" if last is None else number(last[1]) if best is not None else f"{shown(last[0])} {number(last[1])}",
        moment(run.started, "%Y-%m-%d %H:%M"),
        duration(run.seconds),
    )


def _facts(run: RunFolder, name: str) -> dict[str, Any]:
    best = None if run.best is None else asdict(run.best)
    return {**run.summary(), "name": name, "best": best, "last": run.values}
