"""Upload: copy a workdir's checkpoints and logs to its mirror.

The mirror's checkpoints stay valid no matter when the process is killed.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from hookpoint.core.errors import DamagedCheckpoint
from hookpoint.storage.checkpoint.checkpoint_folder import verified
from hookpoint.storage.checkpoint.layout import CHECKPOINTS, MANIFEST, Place
from hookpoint.storage.disk import disk
from hookpoint.storage.remote.mirrored import HEARTBEAT, RETIRED, log_files, offered, remote_manifest
from hookpoint.storage.remote.remote_folder import RemoteFolder
from hookpoint.storage.workdir.catalog import places

logger = logging.getLogger("hookpoint")


class Upload:
    """Bring a mirror up to date with its workdir. Only one thread may use an instance.

    The files of a checkpoint are uploaded first, then the logs, and finally the checkpoint's manifest. The checkpoint is valid
    only once it has a manifest, so the logs in the mirror always reach at least to the step of each valid checkpoint. When a
    checkpoint is replaced or deleted, its manifest is removed first.
    """

    def __init__(
        self, remote: RemoteFolder, workdir: Path, *, every_seconds: float, check: Callable[[], None] | None = None
    ) -> None:
        self.remote, self.workdir, self.every_seconds, self._check = remote, workdir, every_seconds, check
        self._uploaded: set[str] = set()  # names of the workdir's checkpoints that are in the mirror
        self._stamps: dict[str, tuple[int, int]] = {}  # size and modification time of each log file at its last upload
        self._at_start = {path.name for _, path in places(workdir)}
        self._is_begun = False

    def begin(self) -> None:
        """Compare the mirror with the workdir, and record the checkpoints that are in both.

        Retire each checkpoint in the mirror that is later than all checkpoints in the workdir.
        """
        if self._check is not None:
            self._check()
        local = {path.name: path for _, path in places(self.workdir)}
        newest = max((Place.of(name) or Place(0) for name in local), default=Place(-1))
        for place, name in offered(self.remote):
            if name in local:
                if self.remote.read(f"{CHECKPOINTS}/{name}/{MANIFEST}") == disk.read(local[name] / MANIFEST):
                    self._uploaded.add(name)
            elif place > newest:
                self._retire(name)
            elif name in self._at_start:  # retention has deleted the local checkpoint in the meantime
                self._uploaded.add(name)
        self._is_begun = True

    def not_uploaded(self) -> list[str]:
        """Return the checkpoints that are not in the mirror yet, newest first."""
        return [path.name for _, path in reversed(places(self.workdir)) if path.name not in self._uploaded]

    def checkpoints(self) -> None:
        """Upload new checkpoints, newest first, and delete checkpoints that are no longer in the workdir."""
        if not self._is_begun:
            self.begin()
        for name in self.not_uploaded():
            self._upload(name)
        kept = {path.name for _, path in places(self.workdir)}
        for name in sorted(self._uploaded - kept):
            self.remote.remove(f"{CHECKPOINTS}/{name}/{MANIFEST}")
            self.remote.remove(f"{CHECKPOINTS}/{name}")
            self._uploaded.discard(name)

    def logs(self, *, has_ended: bool = False) -> None:
        """Upload the log files that have changed, and write a heartbeat."""
        if not self._is_begun:
            self.begin()
        for name in log_files(self.workdir):
            try:
                status = os.stat(self.workdir / name)
                stamp = (status.st_size, status.st_mtime_ns)
                if self._stamps.get(name) != stamp:
                    self.remote.upload(self.workdir / name, Path(name).as_posix())
                    self._stamps[name] = stamp
            except FileNotFoundError:  # the file was deleted or replaced in the meantime
                if os.path.lexists(self.workdir / name):
                    raise
        self.heartbeat(has_ended=has_ended)

    def heartbeat(self, *, has_ended: bool = False) -> None:
        """Write the current time to the mirror. Readers use it to tell whether the run still updates its mirror."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"format": 1, "updated": now, "every_seconds": self.every_seconds, "ended": has_ended}
        self.remote.write(HEARTBEAT, (json.dumps(facts) + "\n").encode())

    def _upload(self, name: str) -> None:
        folder, target = self.workdir / CHECKPOINTS / name, f"{CHECKPOINTS}/{name}"
        try:
            manifest = verified(folder)
            data = disk.read(folder / MANIFEST)
            self.remote.remove(f"{target}/{MANIFEST}")
            for file, expected in manifest.files.items():
                self.remote.upload(folder / file, f"{target}/{file}")
                size = self.remote.size(f"{target}/{file}")
                if size != expected.size:
                    raise OSError(f"{self.remote.url}/{target}/{file} has {size} bytes after the upload, not {expected.size}")
        except (DamagedCheckpoint, FileNotFoundError) as error:
            if not disk.is_folder(folder):  # retention has deleted the checkpoint in the meantime
                self.remote.remove(target)
                return
            if isinstance(error, FileNotFoundError):
                raise
            logger.warning("%s is not mirrored: %s", folder, error)
            self._uploaded.add(name)  # do not try to upload the damaged checkpoint again
            return
        self.logs()
        self.remote.write(f"{target}/{MANIFEST}", data)
        self._uploaded.add(name)

    def _retire(self, name: str) -> None:
        """Retire a checkpoint in the mirror that is later than all local checkpoints: rename its manifest, and keep its files.

        The run has resumed from an earlier checkpoint, so no run may resume from the retired checkpoint.
        """
        manifest = f"{CHECKPOINTS}/{name}/{MANIFEST}"
        data = self.remote.read(manifest)
        if data is not None:
            self.remote.write(f"{CHECKPOINTS}/{name}/{RETIRED}", data)
            self.remote.remove(manifest)
            logger.warning(
                "%s/%s is newer than this run's checkpoints, so it was retired: its manifest is now %s",
                self.remote.url,
                name,
                RETIRED,
            )


def newest_complete(remote: RemoteFolder) -> Place | None:
    """Return the newest checkpoint with a valid manifest in this mirror. The checkpoint's files are not verified."""
    for place, name in reversed(offered(remote)):
        try:
            if remote_manifest(remote, name) is not None:
                return place
        except DamagedCheckpoint:
            continue
    return None
