"""Outcomes: send exactly one event and one answer per command, even if the process is killed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hookpoint.core.errors import BadControlFile
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run
from hookpoint.core.text.plain_values import plain
from hookpoint.steering.control_answer import APPLIED, LOST, ControlAnswer
from hookpoint.steering.control_command import ControlCommand
from hookpoint.steering.control_folder import ControlFolder

EVENTS = "events.jsonl"
EVENT = "control"
NEWEST_BYTES = 4 * 2**20


class Outcomes:
    """Report the outcome of each command to monitors and controllers.

    For each command, the event is written first. Then the answer is written. Finally, the command's file is removed from the
    folder taken/. If the process is killed, the files in taken/ show at the next start which commands were unfinished.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._has_event: set[str] = set()
        self._unwritten: dict[str, ControlAnswer] = {}

    def send_event(self, command: ControlCommand, status: str, fields: Mapping[str, Any]) -> None:
        if command.id in self._has_event and "replayed" not in fields:
            return
        args = {"do": command.do, "args": dict(command.args)} if command.do else {}
        self._run.put_event(EVENT, id=command.id, **args, by=command.by, status=status, **plain(fields))

    def answer(self, folder: ControlFolder, command: ControlCommand, status: str, fields: Mapping[str, Any]) -> None:
        """Write the final answer after the monitors have received the event. A failure is logged and does not end the run."""
        run = self._run
        try:
            place: dict[str, Any] = {"step": run.step, "iteration": run.iteration, "epoch": run.epoch}
            place |= {"time": round(time.time(), 3), "ranks": run.world_size}
            self._unwritten[command.id] = ControlAnswer(command.id, status, **{**place, **fields})
            run.monitors.settle()
            self._write(folder, command.id)
        except Exception as error:
            logger.warning("the answer to a command could not be written: %s", error)

    def retry(self, folder: ControlFolder) -> None:
        """Write the answers that could not be written before, for example because the disk was full."""
        with suppress(Exception):  # `answer` has already logged the error
            for command_id in list(self._unwritten):
                self._write(folder, command_id)

    def _write(self, folder: ControlFolder, command_id: str) -> None:
        known = folder.answer(command_id)
        if known is None or not known.is_final:
            folder.put_answer(self._unwritten[command_id])
        folder.release(command_id)
        self._unwritten.pop(command_id, None)

    def leftovers(self, folder: ControlFolder) -> list[tuple[ControlCommand, str, str]]:
        """Return the commands that an earlier process of this run claimed but did not answer, each with its outcome.

        A command in the journal was applied or will be replayed. Any other command was lost.
        """
        found: list[tuple[ControlCommand, str, str]] = []
        ids = folder.taken()
        if not ids:
            return found
        self._has_event = self._ids_of_events(Path(self._run.workdir))
        journalled = {entry.id for entry in folder.journal.entries()}
        for command_id in ids:
            command = ControlCommand("", {}, "", command_id)
            with suppress(OSError, BadControlFile):
                command = folder.read_taken(command_id)
            if command_id in journalled:
                found.append((command, APPLIED, ""))
            else:
                found.append((command, LOST, "the run ended before it applied the command"))
        return found

    def _ids_of_events(self, workdir: Path) -> set[str]:
        """Return the ids of the commands whose events are at the end of events.jsonl."""
        ids: set[str] = set()
        with suppress(OSError), (workdir / EVENTS).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - NEWEST_BYTES))
            for line in file.read().split(b"\n"):
                with suppress(ValueError, RecursionError):
                    row = json.loads(line)
                    if isinstance(row, dict) and row.get("event") == EVENT and not row.get("replayed"):
                        ids.add(str(row.get("id")))
        return ids
