"""ControlOrder: a command on its way to a run in progress."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from numbers import Real
from pathlib import Path

from hookpoint.core.errors import BadArgument
from hookpoint.steering.control_answer import APPLIED, LOST, WITHDRAWN, ControlAnswer
from hookpoint.steering.control_command import ControlCommand
from hookpoint.steering.control_folder import ControlFolder
from hookpoint.steering.saved_commands import good_checkpoints, includes
from hookpoint.storage.workdir.lock import holder_of

QUICK_SECONDS, QUICK_POLL, SLOW_POLL = 2.0, 0.02, 0.1


class ControlOrder:
    """A command that `Controller.send` has sent to a run. `wait` returns its outcome, and `withdraw` takes it back.

    Either the run moves the command out of the inbox and answers it, or the sender withdraws it. A withdrawn command is never
    applied.
    """

    def __init__(self, run_folder: Path, command: ControlCommand, timeout: float) -> None:
        self.id, self.command = command.id, command
        self._run_folder, self._timeout = run_folder, timeout
        self._sent = time.monotonic()
        self._final: ControlAnswer | None = None

    def send(self) -> None:
        """Put the command into the run's inbox."""
        with ControlFolder(self._run_folder) as folder:
            folder.send(self.command)

    def answer(self) -> ControlAnswer | None:
        """Return the latest answer to the command, or None if the run has not seen it yet."""
        if self._final is None:
            try:
                with ControlFolder(self._run_folder) as folder:
                    answer = folder.answer(self.id)
            except FileNotFoundError:  # the run folder was deleted
                return None
            if answer is None or not answer.is_final:
                return answer
            self._final = answer
        return self._final

    def wait(self, timeout: float | None = None) -> ControlAnswer:
        """Wait for the final answer.

        If the run does not take the command within `timeout` seconds (default: the timeout passed to `send`), the command is
        withdrawn. Once the run has taken the command, this method waits without a timeout, for example until a validation pass
        ends. If the run ends without an answer, this method returns immediately. The answer is then "applied" or "lost".
        """
        deadline = time.monotonic() + (self._timeout if timeout is None else seconds_of(timeout))
        is_taken = False
        while True:
            answer = self.answer()
            if answer is not None and answer.is_final:
                return answer
            if not self._is_running():
                return self.outcome()
            if not is_taken and time.monotonic() >= deadline:
                is_taken = not self._remove("the run did not take the command in time")
            else:
                time.sleep(QUICK_POLL if time.monotonic() - self._sent < QUICK_SECONDS else SLOW_POLL)

    def withdraw(self) -> bool:
        """Withdraw the command, so that it is never applied. Return False if the run has already taken the command."""
        answer = self.answer()
        if answer is None or not answer.is_final:
            self._remove("the sender withdrew the command")
        return self._final is not None and self._final.status == WITHDRAWN

    def _remove(self, reason: str) -> bool:
        try:
            with ControlFolder(self._run_folder) as folder:
                was_there = folder.withdraw(self.id)
        except FileNotFoundError:
            return False
        if not was_there:
            return False
        self._final = ControlAnswer(self.id, WITHDRAWN, time=time.time(), reason=reason)
        return True

    def _is_running(self) -> bool:
        """Return whether the training process that the command was sent to is still training."""
        if holder_of(self._run_folder) is None:
            return False
        try:
            with ControlFolder(self._run_folder) as folder:
                live = folder.live()
        except FileNotFoundError:
            return False
        return live.attempt == self.command.attempt and not live.ended

    def outcome(self) -> ControlAnswer:
        """Return the final answer after the run has ended. If the run has not answered, derive it from the journal."""
        entry, is_hosted = None, False
        with suppress(FileNotFoundError), ControlFolder(self._run_folder) as folder:
            entry = next((one for one in folder.journal.entries() if one.id == self.id), None)
            is_hosted = "validate" in folder.live().cannot  # True if another library's trainer writes the checkpoints
        answer = self.answer()  # the run may have answered just before it ended
        if answer is not None and answer.is_final:
            return answer
        checkpoints = good_checkpoints(self._run_folder)
        if entry is None:  # the process that should have applied the command has ended; no later process applies it
            self._final = ControlAnswer(self.id, LOST, time=time.time(), reason="the run ended before it answered")
        elif not checkpoints and not is_hosted:
            reason = "the run was killed before its first checkpoint; it starts from scratch, without this command"
            self._final = ControlAnswer(self.id, LOST, time=time.time(), reason=reason)
        else:
            is_saved = bool(checkpoints) and includes(checkpoints[-1][1], entry.number)
            later = "its newest checkpoint includes the command" if is_saved else "a resume replays the command"
            note = f"the run was killed right after it applied the command; {later}"
            self._final = ControlAnswer(self.id, APPLIED, entry.step, entry.iteration, number=entry.number, note=note)
        return self._final

    def __repr__(self) -> str:
        answer = self.answer()
        return f"<{self.command.do} {self.id}: {'sent' if answer is None else answer.status}>"


def seconds_of(timeout: float | None) -> float:
    """Return a timeout in seconds, or infinity for None. Raise BadArgument if it is not a number > 0."""
    if timeout is None:
        return math.inf
    if not isinstance(timeout, Real) or isinstance(timeout, bool) or not timeout > 0:
        raise BadArgument(f"timeout must be a number of seconds > 0, got {timeout!r}.")
    return float(timeout)
