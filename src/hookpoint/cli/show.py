"""`hookpoint show`: print everything about a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import click

from hookpoint.cli.output import coloured_status, heading, put, put_json, width
from hookpoint.cli.run_argument import run_argument
from hookpoint.cli.table import Column, table
from hookpoint.run_folder.best_value import BestValue
from hookpoint.run_folder.checkpoint_list import Listed, bytes_of
from hookpoint.run_folder.describe_event import describe_event
from hookpoint.run_folder.formatting import counted, duration, moment, moment_of, number, shown, size
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.storage.checkpoint.layout import OF_A_RUN, PREVIOUS, Place

NAMED = (Column(), Column(wraps=True))
VALUES = (Column(min_width=12), Column(), Column(), Column(drop=1))
VERSIONS = ("hookpoint", "python", "torch", "numpy", "cuda", "platform")
PARTS = (*OF_A_RUN, PREVIOUS)


@click.command()
@run_argument
@click.option("-n", "--events", type=click.IntRange(0), default=10, show_default=True, help="Number of newest events.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def show(run: RunFolder, events: int, as_json: bool) -> None:
    """Show the status, command, settings, versions, best and last values, newest events, checkpoints and sizes of RUN.

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
    status, *lines = table(NAMED, [row for row in rows if row[1]], limit)
    title = f"{heading(shown(run.name))}  {shown(run.path)}"
    return [title, status.replace(run.status, coloured_status(run.status), 1), *lines]


def _sections(run: RunFolder, events: int, limit: int | None) -> Iterator[tuple[str, list[str]]]:
    yield "best", _best(run, limit)
    yield "last values", _last(run, limit)
    for name in ("config", "hyper", "objects"):
        yield {"hyper": "settings"}.get(name, name), _settings(run.facts.get(name), limit)
    callbacks = ", ".join(map(shown, _list(run.facts.get("callbacks"))))
    yield "callbacks", table([Column(wraps=True)], [(callbacks,)], limit) if callbacks else []
    yield "versions", _versions(run, limit)
    yield "events", _events(run, events, limit)
    yield "checkpoints", _checkpoints(run, limit)
    yield "files", table([Column(), Column(right=True)], [(name, size(count)) for name, count in _sizes(run)], limit)


def _best(run: RunFolder, limit: int | None) -> list[str]:
    saved = run.best_checkpoints
    rows = [
        (
            shown(best.metric),
            number(best.value),
            "" if best.step is None else f"step {best.step}",
            _GUESSES[best.source].format(best.mode)
            if best.source in _GUESSES
            else f"saved as {shown(saved[best.metric])}"
            if best.metric in saved
            else "",
        )
        for best in _kept_best(run)
    ]
    return table(VALUES, rows, limit)


_GUESSES = {"guess": "the {}imum of all records", "newest": "the {}imum of the newest records"}


def _last(run: RunFolder, limit: int | None) -> list[str]:
    rows = [
        (shown(name), number(point.value), f"step {point.step}", _AT.get(point.at, shown(point.at)))
        for name, point in run.last.points.items()
    ]
    rows = rows or [(shown(name), number(value), "", "") for name, value in run.values.items()]
    return table(VALUES, rows, limit)


_AT = {"epoch": "mean of the pass", "step": "", "value": ""}


def _settings(given: Any, limit: int | None) -> list[str]:
    if not isinstance(given, Mapping):
        return []
    rows = [(shown(name), shown(value)) for name, value in _flat(given)]
    return table((Column(min_width=12), Column(wraps=True)), rows, limit)


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
    return table(NAMED, [(shown(name), shown(plain[name])) for name in order], limit)


def _events(run: RunFolder, count: int, limit: int | None) -> list[str]:
    newest = list(islice(run.events(), count))
    rows = [(moment(moment_of(event["time"])), f"step {event['step']}", describe_event(event)) for event in reversed(newest)]
    return table([Column(drop=2), Column(drop=1), Column(wraps=True)], rows, limit)


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
        rows.append((counted(len(rows), "folder"), size(total), "each file counted once"))
    return table([Column(min_width=16), Column(right=True), Column(wraps=True)], rows, limit)


def _files_of(run: RunFolder, best: Listed) -> str:
    """Return the checkpoint whose files a best-… folder links to; by name if its step has more than one."""
    same = [one.path.name for one in run.checkpoints if not one.is_best and one.manifest == best.manifest]
    place = Place.of(same[0]) if same else None
    return f"the files of {shown(same[0])}" if place is not None and place.number > 1 else f"the files of step {best.step}"


def _measured(one: Listed) -> list[str]:
    """Return the values that a checkpoint was saved for, each once."""
    return list(dict.fromkeys(f"{shown(value.get('metric'))} {number(value['value'])}" for value in one.measured.values()))


def _sizes(run: RunFolder) -> list[tuple[str, int]]:
    seen: set[tuple[int, int]] = set()
    found = [(name, bytes_of(run.path / name, seen)) for name in PARTS if os.path.lexists(run.path / name)]
    other = bytes_of(run.path, seen)
    return [*found, *([("other", other)] if other else []), ("all", sum(count for _, count in found) + other)]


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _kept_best(run: RunFolder) -> list[BestValue]:
    """Return the best values that the run has stored, or else the one found otherwise."""
    if run.best is None:
        return []
    return [*run.all_best.values()] if run.best.source == "run" else [run.best]


def everything(run: RunFolder, events: int) -> dict[str, Any]:
    """Return what the command shows, for programs."""
    best = {
        one.metric: {"value": one.value, "step": one.step, "mode": one.mode, "source": one.source} for one in _kept_best(run)
    }
    return {
        **run.summary(),
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
