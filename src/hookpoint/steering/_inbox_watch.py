"""InboxWatch: a thread on the chief that finds new commands, so that the training thread does not have to poll."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from hookpoint.core.errors import BadControlFile
from hookpoint.core.logger import logger
from hookpoint.steering.control_answer import LOST, REFUSED, SEEN, ControlAnswer
from hookpoint.steering.control_command import ControlCommand
from hookpoint.steering.control_folder import ControlFolder

LOOK_SECONDS = 0.25
Retry = Callable[[ControlFolder], None]  # a function that tries again to write answers that could not be written


@dataclass(frozen=True, slots=True)
class Received:
    """A file in the inbox.

    `command` is None if the file cannot be read. If the command's outcome is already known, `outcome` contains the final status
    and the reason for it.
    """

    id: str
    command: ControlCommand | None
    seen_at: float
    outcome: tuple[str, str] | None = None
    is_claimed: bool = False  # whether the command was already claimed before the run was restarted

    def has_expired(self) -> bool:
        seconds = None if self.command is None else self.command.seconds
        return seconds is not None and monotonic() - self.seen_at > seconds


class InboxWatch:
    """Check the inbox four times a second. Read and validate each new command, and answer it with "seen".

    After each check of the inbox, the thread calls `retry`. The training thread takes the commands from `received`, in order,
    and claims them.
    """

    def __init__(self, folder: ControlFolder, attempt: str, wake: Callable[[], None], retry: Retry) -> None:
        self._folder, self._attempt, self._wake, self._retry = folder, attempt, wake, retry
        self.received: deque[Received] = deque()
        self.has_news = threading.Event()
        self._known: set[str] = set()
        self._waiting: set[str] = set()
        self._looking = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hookpoint live control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def look(self) -> None:
        """Read the new files in the inbox."""
        with self._looking:
            new = [self._receive(command_id) for command_id in self._folder.waiting() if self._is_new(command_id)]
        if new:
            self.has_news.set()
            self._wake()

    def claim(self, received: Received) -> bool:
        """Move a command out of the inbox. Return False if its sender has withdrawn it."""
        was_there = self._folder.claim(received.id)
        self._waiting.discard(received.id)
        return was_there

    def _is_new(self, command_id: str) -> bool:
        if command_id in self._waiting:
            return False
        answer = self._folder.answer(command_id)
        if command_id in self._known or (answer is not None and answer.is_final):
            self._folder.discard(command_id)  # this file repeats an earlier command that has been answered
            return False
        return True

    def _receive(self, command_id: str) -> Received:
        self._known.add(command_id)
        self._waiting.add(command_id)
        command, outcome = None, None
        try:
            command = self._folder.read(command_id)
            if command.attempt != self._attempt:
                outcome = (LOST, "it was sent before the run was restarted")
        except (OSError, BadControlFile) as error:
            outcome = (REFUSED, str(error).splitlines()[0])
        received = Received(command_id, command, monotonic(), outcome)
        if outcome is None:
            try:
                self._folder.put_answer(ControlAnswer(command_id, SEEN))
            except (OSError, ValueError) as error:
                logger.warning("a command could not be answered: %s", error)
        self.received.append(received)
        return received

    def _watch(self) -> None:
        has_failed = False
        while not self._over.wait(LOOK_SECONDS):
            try:
                self.look()
                self._retry(self._folder)
                has_failed = False
            except Exception as error:
                if not has_failed:  # log a failure once, not four times a second
                    logger.warning("live control cannot read its inbox: %s", error)
                has_failed = True
