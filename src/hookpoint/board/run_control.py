"""Run control: send a command from the page to a run in progress, and return its answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hookpoint.core.errors import HookpointError
from hookpoint.run_folder.command_error import one_line
from hookpoint.steering.answer_text import answer_text
from hookpoint.steering.control_folder import NAME
from hookpoint.steering.controller import control

ANSWER_SECONDS = 30.0  # for a run to take a command; then it is withdrawn


def has_control(path: Path) -> bool:
    """Return whether a run may take commands, judging by its files."""
    return os.path.exists(path / NAME / "live.json")


def control_of(path: Path) -> dict[str, Any] | None:
    """Return what can be changed in a run in progress, or None if nothing can."""
    controller = control(path)
    try:
        live = controller.live()
        knobs = [asdict(knob) for knob in controller.knobs().values()]
        pending = [{"do": one.command.do, "args": one.command.args, "status": one.status} for one in controller.pending()]
    except (HookpointError, OSError):
        return None
    facts = {"paused": live.paused, "commands": live.commands, "cannot": live.cannot, "actions": live.actions}
    return {**facts, "knobs": knobs, "pending": pending}


def send(path: Path, do: str, args: Mapping[str, Any], expect: Mapping[str, Any] | None) -> dict[str, Any]:
    """Send a command, and return its answer: a status, and a text that describes it."""
    try:
        answer = control(path).send(do, args, expect=expect, timeout=ANSWER_SECONDS).wait()
    except (HookpointError, OSError) as error:
        reason = one_line(str(error))
        return {"status": "refused", "reason": reason, "text": f"refused: {reason}"}
    return {**answer.encoded(), "text": answer_text(answer)}
