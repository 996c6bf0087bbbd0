"""Steering: apply commands to a run in progress, on all ranks or none, and replay them when the run resumes."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from hookpoint.core.control.controlled_loop import ControlledLoop
from hookpoint.core.errors import BadControlFile
from hookpoint.core.logger import logger
from hookpoint.core.text.terminal import say
from hookpoint.steering._execution import Execution
from hookpoint.steering._inbox_watch import InboxWatch, Received
from hookpoint.steering._live_record import LiveRecord
from hookpoint.steering._outcomes import Outcomes
from hookpoint.steering._plans import Plans, reason_of
from hookpoint.steering._settings import Settings
from hookpoint.steering._trace_recorder import TraceRecorder
from hookpoint.steering.command_journal import JournalEntry, now
from hookpoint.steering.control_answer import APPLIED, LOST, REFUSED, WITHDRAWN
from hookpoint.steering.control_command import REPLAYED, ControlCommand
from hookpoint.steering.control_folder import ControlFolder, is_supported
from hookpoint.storage.workdir.lock import Holder

BEAT_SECONDS, PUBLISH_SECONDS = 0.25, 1.0  # intervals between paused ranks' messages, and between updates of live.json
AFTER_A_PAUSE = ("validate", "trace")  # commands that wait until a paused run resumes
LIMIT = 5  # the log line about a replay lists at most this many commands


class Steering:
    """Control one run. See `hookpoint.core.control.control.Control`.

    A thread on the chief watches the inbox. At a step boundary, the chief claims the commands and sends them to all ranks. Each
    rank checks each command. If no rank refuses it, the chief writes it to the journal and all ranks apply it. The chief then
    sends the event "control" and writes the answer. During a pause, the ranks exchange a short message four times a second, so
    no collective operation waits longer than a quarter of a second.

    `new_profile` creates a profiler for the command `trace`. It returns None if torch's profiler is already in use.
    """

    def __init__(self, loop: ControlledLoop, new_profile: Callable[[], Any] | None = None) -> None:
        run = loop.run
        self._loop, self._run, self._clocks = loop, run, loop.clocks
        self._settings = Settings(loop)
        self._recorder = TraceRecorder(run, new_profile, writes=run.is_chief)
        self._plans = Plans(loop, self._settings, self._recorder)
        self._execution = Execution(loop, self._plans)
        self._folder: ControlFolder | None = None  # open on the chief only
        self._watch: InboxWatch | None = None
        self._outcomes = Outcomes(run)
        self._attempt = secrets.token_hex(16)
        self._is_on = self._is_announced = False
        self._replay: deque[JournalEntry] = deque()
        self._pending: list[int] = []  # journal entries that were still to be replayed when the checkpoint was saved
        self._deferred: list[ControlCommand] = []
        self._traced: ControlCommand | None = None
        self._last_number, self._next_publish = 0, 0.0

    # Begin and end

    def begin(self) -> None:
        run = self._run
        if run.is_chief:
            self._open()
        gathered = self._loop.gather({} if self._folder is None else self._tail(), "live control")
        told = gathered[0]
        if not told or None in gathered:  # a rank that does not accept commands sends None
            self._close()
            return
        self._is_on = True
        self._last_number = max(self._clocks.commands, told["last"])
        self._replay = deque(JournalEntry.parsed(content) for content in told["tail"])
        if self._replay:
            self._loop.wake_here()
            self._say_replay()
        if self._folder is not None:
            self._publish()
            self._watch = InboxWatch(self._folder, self._attempt, self._loop.wake, self._outcomes.retry)
            for command, status, reason in self._outcomes.leftovers(self._folder):
                self._watch.received.append(Received(command.id, command, 0.0, (status, reason), is_claimed=True))
            self._watch.look()
            if self._watch.received:
                self._loop.wake()
            self._watch.start()

    def _open(self) -> None:
        """Open the control folder on the chief. If the folder cannot be opened, the run does not accept commands."""
        if not is_supported():
            return
        try:
            self._folder = ControlFolder.create(self._run.workdir)
            self._folder.clean_up()
            if not self._loop.has_resumed and self._folder.journal.last_number():
                # Usually, the store has moved the earlier run's journal to previous/. Under another trainer, it has not.
                self._folder.journal.set_aside()
        except (OSError, BadControlFile) as error:
            logger.warning("the run does not accept commands: %s", error)
            self._close()

    def _tail(self) -> dict[str, Any]:
        """Return the commands to replay, and the number of the last command in the journal."""
        assert self._folder is not None
        try:
            entries, last = self._folder.journal.entries(), self._folder.journal.last_number()
        except (OSError, BadControlFile) as error:
            logger.warning("commands after the checkpoint are not replayed: %s", error)
            entries, last = [], 0
        wanted = [one for one in entries if one.number > self._clocks.commands or one.number in self._pending]
        tail = [one.encoded() for one in wanted] if self._loop.has_resumed else []
        return {"tail": tail, "last": last}

    def _say_replay(self) -> None:
        entries = list(self._replay)[:LIMIT]
        listed = ", ".join(f"{one.number}: {one.do} at iteration {one.iteration}" for one in entries)
        more = f" and {len(self._replay) - LIMIT} more" if len(self._replay) > LIMIT else ""
        count = f"{len(self._replay)} command{'s' * (len(self._replay) > 1)}"
        number = self._replay[0].number if len(self._replay) == 1 else "NUMBER"
        forget = f"stop the run before that iteration, run 'hookpoint ctl {self._run.workdir} forget {number}', and restart"
        say(f"Replaying {count} given after the checkpoint ({listed}{more}). To leave one out, {forget}.")

    def end(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        if self._recorder.is_recording:
            self._finish_trace(f"the run ended after {self._recorder.steps} steps")
        for command in self._deferred:
            self._answer(command, LOST, {"reason": "the run ended before it applied the command"})
        self._deferred = []
        if self._watch is not None and self._folder is not None:
            try:
                self._watch.look()
                for received in self._taken():
                    self._conclude(received, received.outcome or (LOST, "the run ended before it applied the command"))
                self._outcomes.retry(self._folder)
                self._publish(ended=True)
            except (OSError, BadControlFile) as error:
                logger.warning("live control could not shut down cleanly: %s", error)
        self._close()

    def _close(self) -> None:
        self._watch, self._is_on = None, False
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    # The training thread

    @property
    def has_work(self) -> bool:
        received = None if self._watch is None or self._loop.is_in_team else self._watch.received
        return bool(received) or self._is_announced or bool(self._replay) or self._recorder.is_recording

    def announce(self) -> None:
        if self._is_on:
            self._is_announced = True
            self._loop.wake_here()

    def submit(self, command: ControlCommand) -> None:
        """Send a command from inside the run. It is applied at the next step boundary."""
        if self._folder is not None and self._watch is not None:
            self._folder.send(command)
            self._watch.look()

    @property
    def attempt(self) -> str:
        return self._attempt

    def journalled(self) -> set[str]:
        """Return the ids of the commands in the journal."""
        return set() if self._folder is None else {entry.id for entry in self._folder.journal.entries()}

    def restore(self) -> None:
        while self._is_on and self._replay and self._is_due(self._replay[0]):
            self._apply_again(self._replay.popleft())

    def at_boundary(self) -> None:
        if not self._is_on or self._run.resuming:
            return
        self.restore()
        if self._recorder.is_due:
            self._finish_trace()
        if self._is_announced or not self._loop.is_in_team:
            self._is_announced = False
            self._take_commands()
        if self._clocks.is_paused:
            self._stay_paused()
        if monotonic() >= self._next_publish:
            self._publish()

    def _take_commands(self) -> None:
        """Apply the commands that the chief has claimed, on all ranks."""
        claimed = [command.encoded() for command in self._claimed()] if self._run.is_chief else []
        for content in self._loop.gather(claimed, "the commands")[0]:
            self._apply(ControlCommand.parsed(content, content["id"]))
            if not self._clocks.is_paused:
                self._apply_deferred()

    def _claimed(self) -> list[ControlCommand]:
        """Claim the received commands. Answer the commands that will not be applied, and return the other commands."""
        commands = []
        for received in self._taken():
            outcome, command = received.outcome, received.command
            if outcome is None and received.has_expired():
                outcome = (WITHDRAWN, f"its {command.seconds if command else 0:g} s timeout expired before the next boundary")
            if outcome is None and command is not None:
                commands.append(command)
            else:
                self._conclude(received, outcome or (REFUSED, "it could not be read"))
        return commands

    def _taken(self) -> list[Received]:
        """Take the received commands out of the inbox."""
        taken = []
        while self._watch is not None and self._watch.received:
            received = self._watch.received.popleft()
            if received.is_claimed or self._watch.claim(received):
                taken.append(received)
            else:
                self._conclude(received, (WITHDRAWN, "the sender withdrew the command"))
        return taken

    def _conclude(self, received: Received, outcome: tuple[str, str]) -> None:
        command = received.command or ControlCommand("", {}, "", received.id)
        self._answer(command, outcome[0], {"reason": outcome[1]})

    # Applying

    def _apply(self, command: ControlCommand) -> None:
        if self._clocks.is_paused and command.do in AFTER_A_PAUSE:
            self._deferred.append(command)
            return
        plan, reason = self._execution.plan(command)
        number = 0
        if not reason and command.do in REPLAYED:
            number, reason = self._journalled(command)
        result: dict[str, Any] = {}
        if not reason and plan is not None:
            result, reason = self._execution.carry_out(command.do, plan)
            if reason and number:
                self._forget(number, reason)
        if number:
            self._clocks.commands = number
        if reason:
            self._answer(command, REFUSED, {"reason": reason})
        elif command.do == "trace":
            self._traced = command  # answered when the trace is written
        else:
            self._answer(command, APPLIED, {**result, **({"number": number} if number else {})})
        self._execution.raise_problem(command.do)

    def _journalled(self, command: ControlCommand) -> tuple[int, str]:
        """Write a command to the journal. Return the command's number and an error text, which is empty on success."""
        self._last_number += 1
        clocks, problem = self._clocks, ""
        if self._folder is not None:
            place = clocks.iteration, clocks.step, clocks.epochs_done
            try:
                self._folder.journal.append(
                    JournalEntry(self._last_number, *place, command.id, command.do, command.args, command.by, now())
                )
            except (OSError, ValueError) as error:
                problem = f"it cannot be written to the journal: {reason_of(error)}"
        return self._last_number, self._execution.first_of(problem, "writing a command to the journal")

    def _forget(self, number: int, reason: str) -> None:
        if self._folder is not None:
            try:
                self._folder.journal.forget(number, reason=reason)
            except (OSError, ValueError) as error:
                logger.warning("command %d was refused, but the next resume will replay it: %s", number, error)

    # Replaying

    def _is_due(self, entry: JournalEntry) -> bool:
        clocks = self._clocks
        if self._loop.counts_differ:
            return (clocks.step, clocks.epochs_done) >= (entry.step, entry.epochs)
        return (clocks.iteration, clocks.epochs_done) >= (entry.iteration, entry.epochs)

    def _apply_again(self, entry: JournalEntry) -> None:
        command = ControlCommand(entry.do, entry.args, "", entry.id, by=entry.by)
        plan, reason = self._execution.plan(command)
        result: dict[str, Any] = {}
        if not reason and plan is not None:
            result, reason = self._execution.carry_out(command.do, plan)
        self._clocks.commands = max(self._clocks.commands, entry.number)
        status = REFUSED if reason else APPLIED
        fields = {"number": entry.number, "reason": reason} if reason else {**result, "number": entry.number}
        if reason and self._run.is_chief:
            logger.warning("command %d (%s) is not replayed: %s", entry.number, entry.do, reason)
        self._outcomes.send_event(command, status, {**fields, "replayed": True})
        self._publish()
        if self._execution.problem:
            self._forget(entry.number, reason)  # otherwise, every resume would fail at this command
        self._execution.raise_problem(command.do)

    # Tracing and pausing

    def _finish_trace(self, note: str = "") -> None:
        command, self._traced = self._traced, None
        try:
            fields = {"path": str(self._recorder.finish() or ""), **({"note": note} if note else {})}
            status = APPLIED
        except Exception as error:
            status, fields = REFUSED, {"reason": f"the trace could not be written: {reason_of(error)}"}
        if command is not None:
            self._answer(command, status, fields)

    def _stay_paused(self) -> None:
        """Wait until a command resumes the run, or until a signal or a stop request ends it."""
        loop, clocks, watch = self._loop, self._clocks, self._watch
        self._publish()
        while clocks.is_paused and not loop.is_stopping:
            if watch is not None:
                watch.has_news.wait(BEAT_SECONDS)
                watch.has_news.clear()
            elif not loop.is_in_team:
                break
            loop.take_signals()
            loop.serve()
            if not loop.is_stopping:
                self._take_commands()
        if clocks.is_paused:
            loop.resume()
        self._publish()
        self._apply_deferred()

    def _apply_deferred(self) -> None:
        """Apply the commands that have waited for the end of a pause."""
        deferred, self._deferred = self._deferred, []
        for command in deferred:
            if self._loop.is_stopping:
                self._answer(command, LOST, {"reason": "the run ended before it applied the command"})
            else:
                self._apply(command)

    # Answers

    def _answer(self, command: ControlCommand, status: str, fields: Mapping[str, Any]) -> None:
        """On the chief, send the event, write the answer, and update live.json."""
        if self._folder is not None:
            self._outcomes.send_event(command, status, fields)
            self._publish()  # first, so that live.json has the new values when the answer is read
            self._outcomes.answer(self._folder, command, status, fields)

    def _publish(self, *, ended: bool = False) -> None:
        """Write live.json. A failure never ends a run."""
        self._next_publish = monotonic() + PUBLISH_SECONDS
        if self._folder is not None:
            try:
                self._folder.write_live(
                    LiveRecord(
                        attempt=self._attempt,
                        holder=Holder.this_process(),
                        world_size=self._run.world_size,
                        paused=self._clocks.is_paused,
                        ended=ended,
                        commands=self._plans.commands,
                        cannot=self._plans.cannot,
                        knobs=self._settings.rows(),
                        actions=self._settings.action_rows(),
                    )
                )
            except Exception as error:
                logger.warning("live.json could not be written: %s", error)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the settings that commands have changed, and the numbers of the commands that are still to be replayed."""
        state: dict[str, Any] = {"changed": self._settings.state_dict(), "pending": [one.number for one in self._replay]}
        return state if any(state.values()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pending = list(state.get("pending", ()))
        lost = self._settings.load_state_dict(state.get("changed", {}))
        if lost and self._run.is_chief:
            logger.warning("settings changed by commands cannot be restored: %s", ", ".join(lost))
