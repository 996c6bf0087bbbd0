"""HostedFolder: the run folder when another library writes the run's checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookpoint.core.checkpoint.host_store import HostStore
from hookpoint.core.checkpoint.store import Checkpoint, Resume
from hookpoint.storage.checkpoint.checkpoint_folder import saving_to
from hookpoint.storage.disk import disk
from hookpoint.storage.run_file import RunFile
from hookpoint.storage.workdir import quarantine
from hookpoint.storage.workdir.lock import WorkdirLock
from hookpoint.storage.workdir.open_workdir import local_folder


class HostedFolder(HostStore):
    """Lock the workdir during a run and write run.json. Only the chief does this.

    If the host resumes a run, new data is appended to the files in the folder. Otherwise, files from an earlier run are moved
    to previous/.
    """

    def __init__(self, workdir: str | os.PathLike[str], save: Callable[[Sequence[str], int], Any] | None = None) -> None:
        super().__init__(save)
        self.workdir = local_folder(workdir)
        self._lock = WorkdirLock(self.workdir)
        self._run_file: RunFile | None = None

    def open(self, resume: Resume, identity: Mapping[str, Any]) -> Checkpoint | None:
        if self._team.size == 1:
            self._open()
        else:
            from hookpoint.parallel.checkpoint.collective_calls import on_chief

            on_chief(self._team, self._open, lambda nothing: nothing)
        return super().open(resume, identity)

    def _open(self) -> None:
        with saving_to(self.workdir):
            disk.make_folder(self.workdir)
            self._lock.acquire()
            try:
                if self.saved is None:
                    quarantine.move_run(self.workdir)
            except BaseException:
                self._lock.release()
                raise
        self._run_file = RunFile(self.workdir)

    def describe(self, facts: Mapping[str, Any]) -> None:
        if self._run_file is not None:
            self._run_file.update(facts)

    def close(self) -> None:
        self._run_file = None
        self._lock.release()
