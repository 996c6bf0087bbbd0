"""The list that `hookpoint ctl RUN` prints: settings, pending commands, and commands that a resume would replay."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hookpoint.cli._ctl_values import short_names
from hookpoint.cli._output import Column, heading, note, print_lines, table, width
from hookpoint.core.errors import HookpointError, NotTraining
from hookpoint.run_folder.command_error import FINE, NO, one_line
from hookpoint.run_folder.describe_event import describe_order
from hookpoint.run_folder.formatting import shown
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.steering.command_journal import JournalEntry
from hookpoint.steering.controller import Controller, KnobState
from hookpoint.steering.saved_commands import good_checkpoints, includes

NAMED, TEXT = Column(min_width=12), Column(wraps=True)
Rows = Sequence[tuple[str, ...]]


def print_list(run: RunFolder, controller: Controller) -> int:
    """Print the list, and return the exit code: 1 if no process is training."""
    limit, problem = width(), ""
    try:
        live = controller.live()
    except NotTraining as error:
        live, problem = None, one_line(str(error))
    status = "paused" if live is not None and live.paused else run.status
    holder = f", {run.holder}" if run.holder is not None else ""
    print_lines([f"{heading(shown(run.name))}  {shown(run.path)}", f"{status}{shown(holder)}{_where(run)}"])
    sections: list[tuple[str, Sequence[Column], Rows]] = []
    if live is not None:
        knobs = controller.knobs()
        typed = short_names(knobs)
        settings = [_knob(typed[name], knob) for name, knob in knobs.items()]
        sections += [("settings", (NAMED, NAMED, Column(), TEXT), settings)]
        sections += [("actions", (NAMED, TEXT), [(shown(name), shown(about)) for name, about in controller.actions().items()])]
        cannot = [(shown(do), shown(reason)) for do, reason in live.cannot.items()]
        sections += [("not available", (NAMED, TEXT), cannot)]
    pending = [
        (one.status, shown(describe_order(one.command.do, one.command.args)), shown(one.command.by))
        for one in controller.pending()
    ]
    sections += [("pending" if live is not None else "lost", (Column(), TEXT, Column(drop=1)), pending)]
    journal = _journal(controller)
    sections += [("journal", (Column(right=True), Column(), TEXT, Column(drop=2), Column(drop=1)), journal)]
    for title, columns, rows in sections:
        if rows:
            print_lines(["", heading(title), *(f"  {line}" for line in table(columns, rows, limit and limit - 2))])
    if problem:
        note(problem)
    return NO if problem else FINE


def is_paused(run: Path) -> bool:
    """Return whether a run is in progress and paused."""
    with suppress(HookpointError, OSError):
        return Controller(run).live().paused
    return False


def pending_commands(run: Path) -> list[str]:
    """Return the commands that the run has not answered yet, each with its sender."""
    with suppress(HookpointError, OSError):
        controller = Controller(run)
        controller.live()
        return [f"{describe_order(one.command.do, one.command.args)}, by {one.command.by}" for one in controller.pending()]
    return []


def _where(run: RunFolder) -> str:
    return "" if run.step is None else f"; epoch {run.epoch}, step {run.step}"


def _knob(name: str, knob: KnobState) -> tuple[str, str, str, str]:
    low, high = (None if bound is None else shown(bound) for bound in (knob.low, knob.high))
    bounds = f"{low} to {high}" if low and high else f">= {low}" if low else f"<= {high}" if high else ""
    if knob.choices:
        bounds = " | ".join(map(shown, knob.choices))
    return shown(name), shown(knob.value), bounds or shown(knob.type), shown(knob.about)


def _journal(controller: Controller) -> Rows:
    return [
        (
            str(entry.number),
            f"step {entry.step}",
            shown(describe_order(entry.do, entry.args)),
            "in a checkpoint" if is_saved else "replayed by a resume",
            shown(entry.by),
        )
        for entry, is_saved in _journalled(controller)
    ]


def _journalled(controller: Controller) -> list[tuple[JournalEntry, bool]]:
    """Return each command in the journal, and whether a checkpoint includes the change that the command made."""
    saved = [manifest for _, manifest in good_checkpoints(controller.path)]
    return [(entry, any(includes(manifest, entry.number) for manifest in saved)) for entry in controller.journal()]


def everything(run: RunFolder, controller: Controller) -> dict[str, Any]:
    """Return the content of the list as a dict that can be written as JSON."""
    content: dict[str, Any] = {
        "name": run.name,
        "path": str(run.path),
        "status": run.status,
        "epoch": run.epoch,
        "step": run.step,
    }
    try:
        live = controller.live()
        content |= {"training": True, "paused": live.paused, "pid": live.holder.pid, "host": live.holder.host}
        content |= {"world_size": live.world_size, "knobs": live.knobs, "actions": live.actions, "cannot": live.cannot}
    except NotTraining as error:
        content |= {"training": False, "reason": one_line(str(error))}
    content["pending"] = [{"status": one.status, **one.command.encoded()} for one in controller.pending()]
    content["journal"] = [{**entry.encoded(), "saved": is_saved} for entry, is_saved in _journalled(controller)]
    content["saved_commands"] = controller.saved_commands()
    return content
