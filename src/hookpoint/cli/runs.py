"""`hookpoint runs`: the runs in a folder, one line each."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hookpoint.cli.output import note, put, put_json, status_style, width
from hookpoint.cli.table import Column, table
from hookpoint.run_folder.best_value import BestValue
from hookpoint.run_folder.command_error import USAGE, CommandError
from hookpoint.run_folder.find_run import LEVELS, default_folder, find_runs
from hookpoint.run_folder.formatting import duration, moment, number, shown
from hookpoint.run_folder.run_folder import ALL_STATUSES, RunFolder

COLUMNS = (
    Column("name", least=20),
    Column("status", style=status_style),
    Column("epoch", right=True, goes=1),
    Column("step", right=True, goes=2),
    Column("best", least=12, goes=3),
    Column("last", right=True, goes=6),
    Column("started", goes=4),
    Column("duration", right=True, goes=5),
)

Key = Callable[[RunFolder, str], Any]


def _value(best: BestValue) -> float:
    """Return what sorts the better of two values of one mode first."""
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
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("-s", "--sort", type=click.Choice(list(SORTS)), default="started", show_default=True, help="What to sort by.")
@click.option("-r", "--reverse", is_flag=True, help="The other way round.")
@click.option("-a", "--all", "previous", is_flag=True, help="Also earlier runs that were moved aside, in previous/.")
@click.option(
    "--status",
    "wanted",
    type=click.Choice(ALL_STATUSES),
    multiple=True,
    help="Only runs with this status; may be given more than once.",
)
@click.option("--levels", type=click.IntRange(0, 32), default=LEVELS, show_default=True, help="How deep to look.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def runs(
    folder: Path | None, sort: str, reverse: bool, previous: bool, wanted: tuple[str, ...], levels: int, as_json: bool
) -> None:
    """List the runs in DIR: runs/ if there is such a folder, else this one.

    A run is "killed" if its files say that it runs and no process does, and "unknown" if nothing says how it ended. The best
    value is that of a saver, or else a guess by the metric's name; "newest" marks a guess from the end of a long file. The last
    value is of the same metric; where no best value is known, it stands with its name. On a narrow terminal columns are left
    out; --json and pipes always have all.

    \b
    Examples:
      hookpoint runs
      hookpoint runs experiments --sort best
      hookpoint runs --status running --json
    """
    where = default_folder() if folder is None else folder
    if not os.path.isdir(where):
        raise CommandError(f"there is no folder {shown(where)}; give one with runs in it", USAGE)
    found = [(RunFolder(path), os.path.relpath(path, where)) for path in find_runs(where, levels=levels, previous=previous)]
    found = _sorted([pair for pair in found if not wanted or pair[0].status in wanted], SORTS[sort], reverse)
    if as_json:
        put_json([_facts(run, name) for run, name in found])
    elif found:
        put(table(COLUMNS, [_row(run, name) for run, name in found], width()))
    else:
        note(f"no runs in {shown(where)}" + (f" that are {' or '.join(wanted)}" if wanted else ""))


def _sorted(found: list[tuple[RunFolder, str]], key: Key, reverse: bool) -> list[tuple[RunFolder, str]]:
    """Return the runs in order; those without what is sorted by come last, whichever way."""
    keyed = [(key(*pair), pair) for pair in found]
    has = sorted((one for one in keyed if one[0] is not None), key=lambda one: (one[0], one[1][1]), reverse=reverse)
    return [pair for _, pair in has] + [pair for given, pair in keyed if given is None]


def _row(run: RunFolder, name: str) -> tuple[str, ...]:
    best, epochs = run.best, run.epochs
    of = f"/{epochs}" if epochs is not None else ""
    last = run.last_value
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
    best = run.best
    return {
        "name": name,
        "path": os.fspath(run.path),
        "status": run.status,
        "reason": run.reason,
        "epoch": run.epoch,
        "epochs": run.epochs,
        "step": run.step,
        "best": None if best is None else {name: getattr(best, name) for name in ("metric", "value", "step", "mode", "source")},
        "last": run.values,
        "started": None if run.started is None else run.started.isoformat(),
        "seconds": run.seconds,
    }
