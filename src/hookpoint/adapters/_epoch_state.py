"""EpochState: store callback state in the workdir after each epoch, for trainers whose checkpoints cannot contain it."""

from __future__ import annotations

import os
from pathlib import Path

from hookpoint.adapters._hosted_run import HostedRun
from hookpoint.core.errors import DamagedCheckpoint
from hookpoint.core.logger import logger
from hookpoint.storage.checkpoint.layout import HOST_STATE, HOST_STATE_BEFORE
from hookpoint.storage.checkpoint.state_bytes import unpacked
from hookpoint.storage.disk import disk


class EpochState:
    """A file with the callbacks' state. It is written after each epoch, and read when training resumes after that epoch.

    The previous epoch's file is also kept, because the process may be killed after it has written this file but before the
    trainer has saved its own state. Without a workdir, nothing is written. If training then resumes, the
    callbacks start from scratch.
    """

    def __init__(self, hosted: HostedRun, workdir: str | os.PathLike[str] | None) -> None:
        self._hosted = hosted
        self._paths = [] if workdir is None else [Path(workdir, name) for name in (HOST_STATE, HOST_STATE_BEFORE)]

    def write(self) -> None:
        if self._paths and self._hosted.driver.run.is_chief:
            path, before = self._paths
            if disk.exists(path):
                with disk.replacing(before) as staged:
                    disk.link(path, staged)
            self._hosted.write_state(path)

    def after(self, epoch: int) -> bytes | None:
        """Return the state that was saved after this epoch. If no file contains this state, log a warning and return None."""
        if not epoch:
            return None
        trainer = self._hosted.driver.host.name
        if not self._paths:
            text = "without workdir=, the state of hookpoint's callbacks was not saved: they start from scratch"
            logger.warning(f"%s starts epoch %d, but {text}", trainer, epoch + 1)
            return None
        found: list[int] = []
        for path in self._paths:
            state = self._hosted.read_state(path)
            try:
                done = None if state is None else unpacked(state, str(path))["clocks"]["epochs_done"]
            except DamagedCheckpoint as error:
                logger.warning("%s The callbacks cannot resume from this file", error)
                continue
            if done == epoch:
                return state
            found += [] if done is None else [done]
        which = "does not exist" if not found else f"is from epoch {found[0]}"
        logger.warning("%s %s, but %s starts epoch %d: callbacks start from scratch", self._paths[0], which, trainer, epoch + 1)
        return None
