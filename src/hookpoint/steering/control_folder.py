"""ControlFolder: the files in `RUN/.control/` that control a run in progress.

    live.json          the training process and the settings that can be changed; written by the trainer
    inbox/ID.json      a command; written by a controller, removed by the trainer that claims it or the controller
                       that withdraws it
    taken/ID.json      a command that the trainer has claimed but not yet answered
    answers/ID.json    "seen", then the final answer; written by the trainer
    journal.jsonl      the commands that a resume replays

Each file is written under a hidden name and then renamed. Each command has its own file, so controllers never overwrite each
other's commands. Moving a command out of the inbox is atomic: either the trainer claims it, or its controller withdraws it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from hookpoint.core.errors import BadControlFile
from hookpoint.steering._live_record import LiveRecord
from hookpoint.steering._safe_file import open_folder, read_json, remove, write_json
from hookpoint.steering.command_journal import CommandJournal
from hookpoint.steering.control_answer import ControlAnswer
from hookpoint.steering.control_command import ID, ControlCommand

NAME = ".control"
MAX_COMMAND_BYTES = 64 * 2**10
MAX_BYTES = 4 * 2**20  # size limit for live.json and for each answer
MAX_ANSWERS = 1000
SUFFIX = ".json"


class ControlFolder:
    """A run's control folder, kept open. If the folder is replaced, this object still uses the original folder.

    Only the user who started the run can use the folder. Raises FileNotFoundError if the folder does not exist, and
    BadControlFile if other users can write to it.

    >>> folder = ControlFolder.create("runs/mine")
    >>> command = ControlCommand("pause", {}, attempt="0" * 32)
    >>> folder.send(command); folder.waiting() == [command.id]
    True
    >>> folder.withdraw(command.id), folder.claim(command.id)
    (True, False)
    >>> folder.close()
    """

    def __init__(self, run_folder: str | os.PathLike[str], *, create: bool = False) -> None:
        self.path = Path(run_folder) / NAME
        self._descriptors: list[int] = []
        try:
            for path in (self.path, *(self.path / name for name in ("inbox", "taken", "answers"))):
                self._descriptors.append(open_folder(path, create=create))
        except BaseException:
            self.close()
            raise
        self._root, self._inbox, self._taken, self._answers = self._descriptors
        self.journal = CommandJournal(self._root)

    @classmethod
    def create(cls, run_folder: str | os.PathLike[str]) -> Self:
        """Open the control folder, and create it if necessary. The trainer calls this."""
        Path(run_folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(run_folder, create=True)

    def close(self) -> None:
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # live.json

    def live(self) -> LiveRecord:
        """Return the contents of live.json. Raise FileNotFoundError if the file does not exist."""
        return LiveRecord.parsed(read_json(self._root, "live.json", MAX_BYTES))

    def write_live(self, record: LiveRecord) -> None:
        write_json(self._root, "live.json", record.encoded(), sync=False)

    # Commands

    def send(self, command: ControlCommand) -> None:
        """Put a command into the inbox. A controller calls this."""
        write_json(self._inbox, command.id + SUFFIX, command.encoded())

    def withdraw(self, command_id: str) -> bool:
        """Remove a command from the inbox. If this returns True, the command is never applied.

        If this returns False, the trainer has already taken the command and will answer it.
        """
        return remove(self._inbox, command_id + SUFFIX)

    def waiting(self) -> list[str]:
        """Return the ids of the commands in the inbox, oldest first. Other files are ignored."""
        return _ids(self._inbox)

    def taken(self) -> list[str]:
        """Return the ids of the commands that are claimed but not yet answered."""
        return _ids(self._taken)

    def read(self, command_id: str) -> ControlCommand:
        """Return a command from the inbox. Raise BadControlFile if it is invalid, or OSError if it cannot be read."""
        return ControlCommand.parsed(read_json(self._inbox, command_id + SUFFIX, MAX_COMMAND_BYTES), command_id)

    def read_taken(self, command_id: str) -> ControlCommand:
        """Return a command from taken/. Raise BadControlFile if it is invalid, or OSError if it cannot be read."""
        return ControlCommand.parsed(read_json(self._taken, command_id + SUFFIX, MAX_COMMAND_BYTES), command_id)

    def claim(self, command_id: str) -> bool:
        """Move a command from the inbox to taken/. Return False if it was withdrawn. The trainer calls this."""
        name = command_id + SUFFIX
        try:
            os.rename(name, name, src_dir_fd=self._inbox, dst_dir_fd=self._taken)
        except FileNotFoundError:
            return False
        except OSError:  # the disk has failed, or taken/ contains a folder of this name; the command must still leave the inbox
            return remove(self._inbox, name)
        return True

    def release(self, command_id: str) -> None:
        """Remove a claimed command. Call this once it is answered."""
        remove(self._taken, command_id + SUFFIX)

    def discard(self, command_id: str) -> None:
        """Remove from the inbox a command that must not be applied, because it repeats an earlier one."""
        remove(self._inbox, command_id + SUFFIX)

    # Answers

    def answer(self, command_id: str) -> ControlAnswer | None:
        """Return the answer to a command, or None if there is no readable answer yet."""
        try:
            return ControlAnswer.parsed(read_json(self._answers, command_id + SUFFIX, MAX_BYTES), command_id)
        except (OSError, BadControlFile):
            return None

    def put_answer(self, answer: ControlAnswer) -> None:
        write_json(self._answers, answer.id + SUFFIX, answer.encoded(), sync=answer.is_final)

    def answers(self) -> list[str]:
        """Return the ids of all answers, oldest first."""
        return _ids(self._answers)

    def clean_up(self) -> None:
        """Remove old answers, and incomplete files that a killed process has left behind."""
        for command_id in self.answers()[:-MAX_ANSWERS]:
            remove(self._answers, command_id + SUFFIX)
        for folder in (self._root, self._inbox, self._answers):
            for name in os.listdir(folder):
                if name.startswith(".") and name.count(".") >= 3:  # .ID.json.pid.random
                    remove(folder, name)


def is_supported() -> bool:
    """Return whether this system has the system calls that live control needs. Windows does not."""
    return os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd and hasattr(os, "geteuid")


def _ids(folder: int) -> list[str]:
    names = (name.removesuffix(SUFFIX) for name in os.listdir(folder) if name.endswith(SUFFIX))
    return sorted(name for name in names if ID.fullmatch(name))
