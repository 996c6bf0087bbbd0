"""Run control: list what the page can change in a run in progress, and send commands from the page to the run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hookpoint.core.errors import HookpointError, NotTraining
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


class SentCommand:
    """A command on its way from the page to a run. The methods read and write files, but never wait."""

    def __init__(self, path: Path, do: str, args: Mapping[str, Any], expect: Mapping[str, Any] | None) -> None:
        """Send the command. Raises HookpointError or OSError if the run cannot receive it."""
        self._controller = control(path)
        self._order = self._controller.send(do, args, expect=expect, timeout=ANSWER_SECONDS)
        self._sent = time.monotonic()
        self._is_overdue = False

    @property
    def id(self) -> str:
        return self._order.id

    def answer(self) -> dict[str, Any] | None:
        """Return the final answer, or None if there is none yet. If the run does not read the command in time, withdraw it."""
        try:
            answer = self._order.answer()
            if (answer is None or not answer.is_final) and not self._is_running():
                answer = self._order.outcome()
            elif answer is None or not answer.is_final:
                if self._is_overdue or time.monotonic() - self._sent < ANSWER_SECONDS:
                    return None
                self._is_overdue = True
                if not self._order.withdraw():
                    return None  # the run has already read the command, and answers later
                answer = self._order.answer()
        except (HookpointError, OSError) as error:
            return rejection(error)
        assert answer is not None
        return {**answer.encoded(), "text": answer_text(answer)}

    def _is_running(self) -> bool:
        try:
            return self._controller.live().attempt == self._order.command.attempt
        except NotTraining:
            return False


def rejection(error: Exception) -> dict[str, Any]:
    """Return the answer to a command that could not be sent."""
    reason = one_line(str(error))
    return {"status": "refused", "reason": reason, "text": f"refused: {reason}"}
