"""control: steer a run in progress through its run folder."""

from __future__ import annotations

import getpass
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from hookpoint.core.errors import BadArgument, BadControlFile, NotApplied, NotTraining, WorkdirInUse
from hookpoint.core.text.plain_values import plain
from hookpoint.steering._live_record import LiveRecord
from hookpoint.steering.answer_text import answer_text
from hookpoint.steering.command_journal import JournalEntry
from hookpoint.steering.control_answer import APPLIED, ControlAnswer
from hookpoint.steering.control_command import COMMANDS, ControlCommand
from hookpoint.steering.control_folder import ControlFolder
from hookpoint.steering.control_order import ControlOrder, seconds_of
from hookpoint.steering.saved_commands import good_checkpoints, includes, last_command
from hookpoint.storage.workdir.lock import WorkdirLock, holder_of

TIMEOUT = 30.0


def control(run_folder: str | os.PathLike[str]) -> Controller:
    """Steer the run in a folder: change settings, pause, save, validate, trace and stop.

    The run may be in another process, or on another machine that can access the same folder.

    >>> control("runs/mine")
    control('runs/mine')
    """
    return Controller(run_folder)


@dataclass(frozen=True, slots=True)
class KnobState:
    """A setting that commands can change, and its value. `type` is "float", "int", "bool", "str" or "list"."""

    name: str
    type: str
    value: Any
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()
    about: str = ""


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A command that is still waiting for its final answer.

    `status` is "sent" (the run has not seen the command yet), "seen" (the run has seen it) or "taken" (the run is about to
    apply it).
    """

    command: ControlCommand
    status: str


class Controller:
    """Steer the run in a run folder. Call `hookpoint.control` to create a Controller.

    Each method that sends a command waits for the answer and returns it. It raises NotApplied if the run refuses the command,
    ends before it applies the command, or does not take the command within `timeout` seconds. After a timeout, the command is
    withdrawn and never applied. The method raises NotTraining at once if no process is training. Any number of controllers may
    steer a run at the same time.
    """

    def __init__(self, run_folder: str | os.PathLike[str]) -> None:
        self.path = Path(run_folder)

    def __repr__(self) -> str:
        return f"control({os.fspath(self.path)!r})"

    # Reading

    def live(self) -> LiveRecord:
        """Return the process that is training and the settings that can be changed.

        Raise NotTraining if no process is training.
        """
        self._require_folder()
        holder = holder_of(self.path)
        if holder is None:
            see = f"its events: hookpoint show {quote(str(self.path))}"
            raise NotTraining(f"no process is training in {self.path}.", see=see)
        try:
            with ControlFolder(self.path) as folder:
                record = folder.live()
        except FileNotFoundError:
            record = None
        except PermissionError:
            what = f"{self.path} can be controlled only by the user who started the run ({holder})."
            raise BadControlFile(what) from None
        if record is None or record.ended or (record.holder.host, record.holder.pid) != (holder.host, holder.pid):
            raise NotTraining(
                f"{holder} is using {self.path}, but does not accept commands.",
                wait="until its first step, if it has just started",
                check="that it was started with control=True, and that its log contains no warning about commands",
            )
        return record

    def knobs(self) -> dict[str, KnobState]:
        """Return the settings that can be changed, by name."""
        return {knob.name: knob for knob in map(_knob, self.live().knobs)}

    def actions(self) -> dict[str, str]:
        """Return the descriptions of the callbacks' actions, by name."""
        return {str(one.get("name")): str(one.get("about", "")) for one in self.live().actions}

    def pending(self) -> list[PendingCommand]:
        """Return the commands that have not been answered yet, oldest first."""
        self._require_folder()
        try:
            with ControlFolder(self.path) as folder:
                taken = [PendingCommand(command, "taken") for command in _read(folder.taken(), folder.read_taken)]
                waiting = _read(folder.waiting(), folder.read)
                seen = {command.id for command in waiting if folder.answer(command.id)}
        except FileNotFoundError:
            return []
        return [*taken, *(PendingCommand(command, "seen" if command.id in seen else "sent") for command in waiting)]

    def journal(self) -> list[JournalEntry]:
        """Return the commands in the journal, except for those that `forget` has removed.

        A resumed run replays the commands that were applied after its checkpoint was saved.
        """
        self._require_folder()
        try:
            with ControlFolder(self.path) as folder:
                return folder.journal.entries()
        except FileNotFoundError:
            return []

    def saved_commands(self) -> int:
        """Return the number of the last journaled command that a checkpoint includes, or 0 if no checkpoint includes one."""
        return max((last_command(manifest) for _, manifest in good_checkpoints(self.path)), default=0)

    def _require_folder(self) -> None:
        if not self.path.is_dir():
            problem = f"{self.path} is not a folder" if self.path.exists() else f"there is no run folder {self.path}"
            raise NotTraining(f"{problem}.", list="runs: hookpoint runs")

    # Commands

    def send(
        self,
        do: str,
        args: Mapping[str, Any] | None = None,
        *,
        expect: Mapping[str, Any] | None = None,
        timeout: float | None = TIMEOUT,
    ) -> ControlOrder:
        """Send a command without waiting for its answer.

        The command expires `timeout` seconds after the run sees it. With `timeout=None`, the command never expires.
        """
        order = self.prepare(do, args, expect=expect, timeout=timeout)
        order.send()
        return order

    def prepare(
        self,
        do: str,
        args: Mapping[str, Any] | None = None,
        *,
        expect: Mapping[str, Any] | None = None,
        timeout: float | None = TIMEOUT,
    ) -> ControlOrder:
        """Return a command as a ControlOrder, without sending it.

        If the caller is interrupted while it sends the command, it can use this object to withdraw the command.
        """
        if do not in COMMANDS:
            raise BadArgument(f"there is no command {do!r}.", choose=", ".join(COMMANDS))
        seconds = seconds_of(timeout)
        live = self.live()
        args, expect = _plain(do, args or {}), _plain("expect", expect or {})
        expires = None if seconds == math.inf else seconds
        command = ControlCommand(do, args, live.attempt, expect=expect, seconds=expires, by=_sender())
        return ControlOrder(self.path, command, seconds)

    def set(
        self, values: Mapping[str, Any], *, expect: Mapping[str, Any] | None = None, timeout: float = TIMEOUT
    ) -> ControlAnswer:
        """Change settings. Either all of them change at the same step, or none of them changes.

        `expect` maps settings to values. If one of these settings has a different value now, the command is refused.
        """
        return self._ask("set", timeout, expect, values=dict(values))

    def pause(self, *, timeout: float = TIMEOUT) -> ControlAnswer:
        """Pause all ranks at the next step boundary, until you call `resume`. Their memory stays allocated."""
        return self._ask("pause", timeout)

    def resume(self, *, timeout: float = TIMEOUT) -> ControlAnswer:
        """Resume a paused run."""
        return self._ask("resume", timeout)

    def save(self, tag: str = "manual", *, timeout: float = TIMEOUT) -> ControlAnswer:
        """Save a checkpoint with this tag, and wait until it is on disk. The answer contains the checkpoint's path."""
        return self._ask("save", timeout, tag=tag)

    def validate(self, *, timeout: float = TIMEOUT) -> ControlAnswer:
        """Validate at the next step boundary. The answer contains the metrics in `values`."""
        return self._ask("validate", timeout)

    def log_every(self, steps: int, *, timeout: float = TIMEOUT) -> ControlAnswer:
        """Change the interval between log steps."""
        return self._ask("log-every", timeout, steps=steps)

    def trace(self, steps: int, *, timeout: float = TIMEOUT) -> ControlAnswer:
        """Profile the next steps. The answer contains the trace's path."""
        return self._ask("trace", timeout, steps=steps)

    def stop(self, reason: str = "", *, timeout: float = TIMEOUT) -> ControlAnswer:
        """Stop the run at the next step boundary, like run.stop(reason)."""
        args = {"reason": reason} if reason else {}
        return self._ask("stop", timeout, None, **args)

    def call(self, action: str, *, timeout: float = TIMEOUT) -> ControlAnswer:
        """Call a callback's action."""
        return self._ask("call", timeout, action=action)

    def forget(self, number: int) -> JournalEntry:
        """Remove the command with this number from the journal, so that the next start does not replay it.

        Raises NotApplied while a process is training, or if a checkpoint already includes the command.
        """
        self._require_folder()
        try:
            with ControlFolder(self.path) as folder, _locked(self.path):
                entry = next((entry for entry in folder.journal.entries() if entry.number == number), None)
                if entry is None:
                    raise NotApplied(f"forget was refused: the journal of {self.path} has no command {number}")
                holding = next((path for path, manifest in good_checkpoints(self.path) if includes(manifest, number)), None)
                if holding is not None:
                    raise NotApplied(f"forget was refused: {holding} already contains command {number}")
                folder.journal.forget(number, by=_sender())
        except FileNotFoundError:
            raise NotApplied(f"forget was refused: {self.path} has no journal") from None
        return entry

    def _ask(self, do: str, timeout: float, expect: Mapping[str, Any] | None = None, **args: Any) -> ControlAnswer:
        order = self.prepare(do, args, expect=expect, timeout=timeout)
        try:
            order.send()
            answer = order.wait()
        except BaseException:  # such as KeyboardInterrupt after Ctrl-C
            order.withdraw()
            raise
        if answer.status != APPLIED:
            raise NotApplied(f"{do} was {answer_text(answer)}", answer)
        return answer


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a run folder, so that no run can start in it."""
    lock = WorkdirLock(path)
    try:
        lock.acquire(warn=False)
    except WorkdirInUse as error:
        raise NotApplied(f"forget was refused: {str(error).splitlines()[0].rstrip('.')}") from error
    try:
        yield
    finally:
        lock.release()


def _read(ids: Iterable[str], read: Callable[[str], ControlCommand]) -> list[ControlCommand]:
    """Return the commands with these ids. Skip files that are not commands, and commands that were answered in the meantime."""
    found = []
    for id in ids:
        with suppress(OSError, BadControlFile):
            found.append(read(id))
    return found


def _knob(record: Mapping[str, Any]) -> KnobState:
    choices = record.get("choices")
    low, high = (bound if isinstance(bound, int | float) else None for bound in (record.get("low"), record.get("high")))
    name, kind, about = (str(record.get(key, "")) for key in ("name", "type", "about"))
    return KnobState(name, kind, record.get("value"), low, high, tuple(choices) if isinstance(choices, list) else (), about)


def _plain(what: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON types. Raise for NaN and infinity, which JSON cannot represent."""
    values = _without_arrays(values)
    for name, value in {**values, **dict(values.get("values") or {})}.items():
        if any(isinstance(one, float) and not math.isfinite(one) for one in (value if isinstance(value, list) else [value])):
            raise BadArgument(f"{what}: {name} must be finite, got {value!r}.")
    found: dict[str, Any] = plain(values)
    return found


def _without_arrays(value: Any) -> Any:
    """Convert NumPy values and tensors to Python numbers and lists, even if they are inside a dict, list or tuple."""
    if isinstance(value, Mapping):
        return {name: _without_arrays(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(item) for item in value]
    return value.tolist() if callable(getattr(value, "tolist", None)) else value


def _sender() -> str:
    """Return the sender of a command: user@host:pid."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container, the user may have no passwd entry
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}:{os.getpid()}"
