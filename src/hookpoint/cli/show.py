"""`hookpoint show`: print everything about a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import click

from hookpoint.cli._ctl_list import is_paused, pending_commands
from hookpoint.cli._output import Column, coloured_status, heading, print_json, print_lines, table, width
from hookpoint.cli._run_argument import readable_run_argument
from hookpoint.cli._show_lineage import data_rows, lineage_rows
from hookpoint.run_folder.checkpoint_list import Listed
from hookpoint.run_folder.describe_event import describe_event
from hookpoint.run_folder.formatting import counted, duration, moment, moment_of, number, shown, size
from hookpoint.run_folder.run_details import best_values_of, details_of, flat, sizes_of
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.storage.checkpoint.layout import Place
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.run_file import as_list

NAMED = (Column(), Column(wraps=True))
VALUES = (Column(min_width=12), Column(), Column(), Column(drop=1))
VERSIONS = ("hookpoint", "python", "torch", "numpy", "cuda", "platform")
Rows = Sequence[tuple[str, ...]]


@click.command()
@readable_run_argument
@click.option("-n", "--events", type=click.IntRange(0), default=10, show_default=True, help="Number of events to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def show(run: RunFolder, events: int, as_json: bool) -> None:
    """Show the status, lineage, settings, data, versions, best and last values, events, checkpoints and sizes of RUN.

    \b
    Examples:
      hookpoint show mine
      hookpoint show runs/mine --events 50
      hookpoint show s3://bucket/runs/mine
      hookpoint show mine --json | jq .best
    """
    if as_json:
        print_json(details_of(run, events))
        return
    limit = width()
    print_lines(_summary(run, limit))
    for head, columns, rows in _sections(run, events):
        if rows:
            print_lines(["", heading(head), *(f"  {line}" for line in table(columns, rows, limit and limit - 2))])


def _summary(run: RunFolder, limit: int | None) -> list[str]:
    holder = f", {run.holder}" if run.holder is not None else ""
    holder = f", paused{holder}" if is_paused(run.path) else holder
    of = f" of {run.epochs}" if run.epochs is not None else ""
    where = [f"epoch {run.epoch}{of}"] if run.epoch is not None else []
    where += [f"step {run.step}"] if run.step is not None else []
    took = duration(run.seconds)
    rows = [
        ("status", f"{run.status}{shown(holder)}"),
        ("because", shown(run.reason)),
        ("pending", shown("; ".join(pending_commands(run.path)))),
        ("at", ", ".join(where)),
        ("started", moment(run.started) + (f", trained for {took}" if took else "")),
        ("resumed", ", ".join(moment(moment_of(time)) for time in as_list(run.facts.get("resumed")))),
        ("inexact", shown("; ".join(map(str, as_list(run.facts.get("inexact")))))),
        ("command", shown(run.facts.get("command", ""))),
        ("in", shown(run.facts.get("folder", ""))),
        ("on", shown(run.facts.get("host", ""))),
    ]
    status, *lines = table(NAMED, [row for row in rows if row[1]], limit)
    title = f"{heading(shown(run.name))}  {shown(run.where)}"
    return [title, status.replace(run.status, coloured_status(run.status), 1), *lines]


def _sections(run: RunFolder, events: int) -> Iterator[tuple[str, Sequence[Column], Rows]]:
    yield "lineage", (Column(drop=1), Column(), Column(wraps=True)), lineage_rows(run)
    yield "best", VALUES, _best(run)
    yield "last values", VALUES, _last(run)
    for title, name in (("config", "config"), ("settings at the start", "hyper"), ("objects", "objects")):
        yield title, (Column(min_width=12), Column(wraps=True)), _settings(run.facts.get(name))
    yield "data", NAMED, data_rows(run)
    callbacks = ", ".join(map(shown, as_list(run.facts.get("callbacks"))))
    yield "callbacks", (Column(wraps=True),), [(callbacks,)] if callbacks else []
    versions, others = _identity(run)
    yield "versions", NAMED, versions
    yield "identity", NAMED, others
    yield "events", (Column(drop=2), Column(drop=1), Column(wraps=True)), _events(run, events)
    yield "checkpoints", (Column(min_width=16), Column(right=True), Column(wraps=True)), _checkpoints(run)
    yield "files", (Column(), Column(right=True)), [(name, size(count)) for name, count in sizes_of(run)]


def _best(run: RunFolder) -> Rows:
    saved, rows = run.best_checkpoints, []
    for best in best_values_of(run):
        step = "" if best.step is None else f"step {best.step}"
        source = f"saved as {shown(saved[best.metric])}" if best.metric in saved else ""
        if best.source in _GUESSES:
            source = _GUESSES[best.source].format(best.mode)
        rows.append((shown(best.metric), number(best.value), step, source))
    return rows


_GUESSES = {"guess": "the {}imum of all records", "newest": "the {}imum of the newest records"}


def _last(run: RunFolder) -> Rows:
    rows = [
        (shown(name), number(point.value), f"step {point.step}", _AT.get(point.at, shown(point.at)))
        for name, point in run.last.points.items()
    ]
    return rows or [(shown(name), number(value), "", "") for name, value in run.values.items()]


_AT = {"epoch": "mean of the pass", "step": "", "value": ""}


def _settings(settings: Any) -> Rows:
    return [(shown(name), shown(value)) for name, value in flat(settings)] if isinstance(settings, Mapping) else []


def _identity(run: RunFolder) -> tuple[Rows, Rows]:
    """Return the versions with which a run was started, and the other facts that a resume compares."""
    identity = run.facts.get("identity")
    if not isinstance(identity, Mapping):
        return [], []
    plain = {name: value for name, value in identity.items() if isinstance(value, str | int) and name != "format"}
    versions = [(name, shown(plain.pop(name))) for name in VERSIONS if name in plain]
    return versions, [(shown(name), shown(value)) for name, value in plain.items()]


def _events(run: RunFolder, count: int) -> Rows:
    newest = list(islice(run.events(), count))[::-1]
    return [(moment(moment_of(event["time"])), f"step {event['step']}", describe_event(event)) for event in newest]


def _checkpoints(run: RunFolder) -> Rows:
    rows = []
    for checkpoint in run.checkpoints:
        if checkpoint.manifest is None:
            what = shown(checkpoint.problem)
        else:
            what = _linked_checkpoint(run, checkpoint) if checkpoint.is_best else ", ".join(map(shown, checkpoint.tags))
            what += f" ({_measured(checkpoint)})" if checkpoint.measured else ""
            what += "".join(f"; {line}" for line in _details(checkpoint.manifest) if not checkpoint.is_best)
        rows.append((shown(checkpoint.path.name), size(checkpoint.size_bytes), what))
    if rows:
        total = sum(checkpoint.own_bytes for checkpoint in run.checkpoints)
        rows.append((counted(len(rows), "folder"), size(total), "linked files are counted once"))
    return rows


def _details(manifest: Manifest) -> list[str]:
    """Return lines about a checkpoint: whether it is encrypted, the links to it, and the values that a saver added."""
    lines = ["encrypted"] if manifest.encryption else []
    lines += [f"linked as {', '.join(map(shown, manifest.links))}"] if manifest.links else []
    return lines + (
        [", ".join(f"{shown(name)}: {shown(value)}" for name, value in flat(manifest.info))] if manifest.info else []
    )


def _linked_checkpoint(run: RunFolder, best: Listed) -> str:
    """Describe the checkpoint that a best-… folder links to: by name if its step has several checkpoints, otherwise by step."""
    names = [other.path.name for other in run.checkpoints if not other.is_best and other.manifest == best.manifest]
    place = Place.of(names[0]) if names else None
    return f"the files of {shown(names[0])}" if place is not None and place.number > 1 else f"the files of step {best.step}"


def _measured(checkpoint: Listed) -> str:
    """Return the names and values of the metrics that caused a checkpoint to be saved, without duplicates."""
    values = (f"{shown(value.get('metric'))} {number(value['value'])}" for value in checkpoint.measured.values())
    return ", ".join(dict.fromkeys(values))
