"""`hookpoint show`: all that a run folder says."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import click

from hookpoint.cli.output import heading, put, put_json, status_style, width
from hookpoint.cli.run_argument import run_argument
from hookpoint.cli.table import Column, table
from hookpoint.run_folder.best_value import BestValue
from hookpoint.run_folder.checkpoint_list import Listed, bytes_of
from hookpoint.run_folder.describe_event import sentence
from hookpoint.run_folder.formatting import counted, duration, moment, moment_of, number, shown, size
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.storage.checkpoint.layout import PREVIOUS, RUN_FILES, Place

NAMED = (Column(""), Column("", flows=True))
VERSIONS = ("hookpoint", "python", "torch", "numpy", "cuda", "platform")
PARTS = (*RUN_FILES, PREVIOUS)


@click.command()
@run_argument
@click.option("-n", "--events", type=click.IntRange(0), default=10, show_default=True, help="How many events, the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def show(run: RunFolder, events: int, as_json: bool) -> None:
    """Show what RUN is, how it stands and what it keeps.

    Status, command, settings, versions, best and last values, the newest events, checkpoints and sizes.

    \b
    Examples:
      hookpoint show mine
      hookpoint show runs/mine --events 50
      hookpoint show mine --json | jq .best
    """
    if as_json:
        put_json(everything(run, events))
        return
    limit = width()
    put(_standing(run, limit))
    for head, lines in _sections(run, events, None if limit is None else limit - 2):
        if lines:
            put(["", heading(head), *(f"  {line}" for line in lines)])


def _standing(run: RunFolder, limit: int | None) -> list[str]:
    holder = f", {run.holder}" if run.holder is not None else ""
    of = f" of {run.epochs}" if run.epochs is not None else ""
    where = [f"epoch {run.epoch}{of}"] if run.epoch is not None else []
    where += [f"step {run.step}"] if run.step is not None else []
    took = duration(run.seconds)
    rows = [
        ("status", f"{run.status}{shown(holder)}"),
        ("because", shown(run.reason)),
        ("at", ", ".join(where)),
        ("started", moment(run.started) + (f", trained for {took}" if took else "")),
        ("resumed", ", ".join(moment(moment_of(one)) for one in _list(run.facts.get("resumed")))),
        ("inexact", shown("; ".join(map(str, _list(run.facts.get("inexact")))))),
        ("command", shown(run.facts.get("command", ""))),
        ("in", shown(run.facts.get("folder", ""))),
        ("on", shown(run.facts.get("host", ""))),
    ]
    title = heading(shown(run.name)) + f"  {shown(run.path)}"
    lines = table(NAMED, [row for row in rows if row[1]], limit, head=False)
    return [
        title,
        *(line.replace(run.status, status_style(run.status), 1) if at == 0 else line for at, line in enumerate(lines)),
    ]


def _sections(run: RunFolder, events: int, limit: int | None) -> Iterator[tuple[str, list[str]]]:
    yield "best", _best(run, limit)
    yield "last values", _last(run, limit)
    for name in ("config", "hyper", "objects"):
        yield {"hyper": "settings"}.get(name, name), _settings(run.facts.get(name), limit)
    callbacks = ", ".join(map(shown, _list(run.facts.get("callbacks"))))
    yield "callbacks", table([Column("", flows=True)], [(callbacks,)], limit, head=False) if callbacks else []
    yield "versions", _versions(run, limit)
    yield "events", _events(run, events, limit)
    yield "checkpoints", _checkpoints(run, limit)
    yield (
        "files",
        [*table([Column(""), Column("", right=True)], [(name, size(count)) for name, count in _sizes(run)], limit, head=False)],
    )


def _best(run: RunFolder, limit: int | None) -> list[str]:
    saved = run.best_checkpoints
    rows = [
        (
            shown(best.metric),
            number(best.value),
            "" if best.step is None else f"step {best.step}",
            _GUESSES[best.source].format(best.mode) if best.source in _GUESSES else _saved_as(saved.get(best.metric)),
        )
        for best in _kept_best(run)
    ]
    return table([Column("", least=12), Column(""), Column(""), Column("", goes=1)], rows, limit, head=False)


_GUESSES = {"guess": "the {}imum of what was logged", "newest": "the {}imum of the newest records"}


def _last(run: RunFolder, limit: int | None) -> list[str]:
    rows = [
        (
            shown(name),
            number(point.value),
            f"step {point.step}",
            "" if point.at == "step" else _AT.get(point.at, shown(point.at)),
        )
        for name, point in run.last.points.items()
    ]
    rows = rows or [(shown(name), number(value), "", "") for name, value in run.values.items()]
    return table([Column("", least=12), Column(""), Column(""), Column("", goes=1)], rows, limit, head=False)


_AT = {"epoch": "mean of the pass", "value": ""}


def _settings(given: Any, limit: int | None) -> list[str]:
    if not isinstance(given, Mapping):
        return []
    rows = [(shown(name), shown(value)) for name, value in _flat(given)]
    return table((Column("", least=12), Column("", flows=True)), rows, limit, head=False)


def _flat(given: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings with dotted names."""
    for name, value in given.items():
        if isinstance(value, Mapping) and value and before.count(".") < 8:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _versions(run: RunFolder, limit: int | None) -> list[str]:
    identity = run.facts.get("identity")
    if not isinstance(identity, Mapping):
        return []
    plain = {name: value for name, value in identity.items() if isinstance(value, str | int) and name != "format"}
    order = [*(name for name in VERSIONS if name in plain), *(name for name in plain if name not in VERSIONS)]
    return table(NAMED, [(shown(name), shown(plain[name])) for name in order], limit, head=False)


def _events(run: RunFolder, count: int, limit: int | None) -> list[str]:
    newest = list(islice(run.events(), count))
    rows = [(moment(moment_of(event["time"])), f"step {event['step']}", sentence(event)) for event in reversed(newest)]
    return table([Column("", goes=2), Column("", goes=1), Column("", flows=True)], rows, limit, head=False)


def _checkpoints(run: RunFolder, limit: int | None) -> list[str]:
    rows = []
    for one in run.checkpoints:
        if one.manifest is None:
            what = shown(one.problem)
        else:
            what = _files_of(run, one) if one.is_best else ", ".join(map(shown, one.tags))
            what += f" ({', '.join(_measured(one))})" if one.measured else ""
        rows.append((shown(one.path.name), size(one.size_bytes), what))
    if rows:
        total = sum(one.own_bytes for one in run.checkpoints)
        rows.append((counted(len(rows), "folder"), size(total), "files with two names counted once"))
    return table([Column("", least=16), Column("", right=True), Column("", flows=True)], rows, limit, head=False)


def _saved_as(name: str | None) -> str:
    return "" if name is None else f"saved as {shown(name)}"


def _files_of(run: RunFolder, best: Listed) -> str:
    """Say whose files a best-… folder has; by name where several checkpoints are of its step."""
    same = [one.path.name for one in run.checkpoints if not one.is_best and one.manifest == best.manifest]
    place = Place.of(same[0]) if same else None
    return f"the files of {shown(same[0])}" if place is not None and place.number > 1 else f"the files of step {best.step}"


def _measured(one: Listed) -> list[str]:
    """Return the values that a checkpoint was saved for, each once."""
    found = {f"{shown(value.get('metric'))} {number(value['value'])}": None for value in one.measured.values()}
    return list(found)


def _sizes(run: RunFolder) -> list[tuple[str, int]]:
    seen: set[tuple[int, int]] = set()
    found = [(name, bytes_of(run.path / name, seen)) for name in PARTS if os.path.lexists(run.path / name)]
    other = bytes_of(run.path, seen)
    return [*found, *([("other", other)] if other else []), ("all", sum(count for _, count in found) + other)]


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _kept_best(run: RunFolder) -> list[BestValue]:
    """Return all best values that the run kept, or the one that is known otherwise."""
    if run.best is None:
        return []
    return [*run.all_best.values()] if run.best.source == "run" else [run.best]


def everything(run: RunFolder, events: int) -> dict[str, Any]:
    """Return what the command shows, for programs."""
    best = {
        one.metric: {"value": one.value, "step": one.step, "mode": one.mode, "source": one.source} for one in _kept_best(run)
    }
    return {
        "name": run.name,
        "path": os.fspath(run.path),
        "status": run.status,
        "reason": run.reason,
        "epoch": run.epoch,
        "epochs": run.epochs,
        "step": run.step,
        "started": None if run.started is None else run.started.isoformat(),
        "seconds": run.seconds,
        "best": best,
        "best_checkpoints": run.best_checkpoints,
        "last": {name: {"value": one.value, "step": one.step, "at": one.at} for name, one in run.last.points.items()},
        "run": run.facts,
        "events": list(reversed(list(islice(run.events(), events)))),
        "checkpoints": [
            {
                "name": one.path.name,
                "step": one.step,
                "epoch": None if one.manifest is None else one.manifest.moment.epoch,
                "iteration": None if one.manifest is None else one.manifest.moment.iteration,
                "measured": one.measured,
                "tags": one.tags,
                "size_bytes": one.size_bytes,
                "own_bytes": one.own_bytes,
                "problem": one.problem,
            }
            for one in run.checkpoints
        ],
        "size_bytes": dict(_sizes(run)),
    }
