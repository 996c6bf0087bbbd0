"""Run control: send a command from the page to a run in progress, and return its answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hookpoint.core.errors import HookpointError
from hookpoint.run_folder.command_error import one_line
from hookpoint.run_folder.describe_event import describe_order
from hookpoint.run_folder.formatting import shown
from hookpoint.run_folder.run_folder import RUNNING, RunFolder
from hookpoint.steering.answer_text import answer_text
from hookpoint.steering.control_folder import NAME
from hookpoint.steering.controller import PendingCommand, control

ANSWER_SECONDS = 30.0  # if the run does not take a command within this time, the command is withdrawn


def has_control(path: Path) -> bool:
    """Return whether a run's files indicate that it accepts commands."""
    return os.path.exists(path / NAME / "live.json")


def control_of(run: RunFolder) -> tuple[dict[str, Any] | None, str]:
    """Return what can be changed in a run in progress. If nothing can be changed, return None and the reason."""
    if run.status != RUNNING:
        return None, f"This run is not in progress: {run.status}."
    controller = control(run.path)
    try:
        live = controller.live()
        knobs = [asdict(knob) for knob in controller.knobs().values()]
        pending = [_described(one) for one in controller.pending()]
    except (HookpointError, OSError) as error:
        return None, one_line(str(error))
    facts = {"paused": live.paused, "commands": live.commands, "cannot": live.cannot, "actions": live.actions}
    return {**facts, "knobs": knobs, "pending": pending}, ""


def _described(pending: PendingCommand) -> dict[str, Any]:
    command = pending.command
    text = shown(describe_order(command.do, command.args))
    return {"id": command.id, "do": command.do, "text": text, "by": command.by, "status": pending.status}


def send(path: Path, do: str, args: Mapping[str, Any], expect: Mapping[str, Any] | None) -> dict[str, Any]:
    """Send a command, and return its answer as a dict with a status and a description."""
    try:
        answer = control(path).send(do, args, expect=expect, timeout=ANSWER_SECONDS).wait()
    except (HookpointError, OSError) as error:
        reason = one_line(str(error))
        return {"status": "refused", "reason": reason, "text": f"refused: {reason}"}
    return {**answer.encoded(), "text": answer_text(answer)}
