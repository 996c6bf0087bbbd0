"""EpochState: store callback state in the workdir after each epoch, for trainers whose checkpoints cannot contain it."""

from __future__ import annotations

import os
from pathlib import Path

from hookpoint.adapters._hosted_run import HostedRun
from hookpoint.core.errors import DamagedCheckpoint
from hookpoint.core.logger import logger
from hookpoint.storage.checkpoint.layout import HOST_STATE
from hookpoint.storage.checkpoint.state_bytes import unpacked


class EpochState:
    """A state file that is written after each epoch. A fit that resumes at the next epoch reads it.

    Without a workdir, nothing is written or read.
    """

    def __init__(self, hosted: HostedRun, workdir: str | os.PathLike[str] | None) -> None:
        self._hosted = hosted
        self._path = None if workdir is None else Path(workdir, HOST_STATE)

    def write(self) -> None:
        if self._path is not None and self._hosted.driver.run.is_chief:
            self._hosted.write_state(self._path)

    def after(self, epoch: int) -> bytes | None:
        """Return the state if it was saved after this epoch. Otherwise, warn that it is missing or from another epoch."""
        if self._path is None or not epoch:
            return None
        trainer, state = self._hosted.driver.host.name, self._hosted.read_state(self._path)
        try:
            done = None if state is None else unpacked(state, str(self._path))["clocks"]["epochs_done"]
        except DamagedCheckpoint as error:
            logger.warning("%s The callbacks start without their saved state", error)
            return None
        if done != epoch:
            found = "does not exist" if done is None else f"is from epoch {done}"
            logger.warning("%s %s, but %s starts epoch %d: callbacks start without it", self._path, found, trainer, epoch + 1)
            return None
        return state
