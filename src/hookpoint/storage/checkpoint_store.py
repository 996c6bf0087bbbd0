"""CheckpointStore: write and read the checkpoints in a workdir."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hookpoint.core.checkpoint.crashes import is_edited_since
from hookpoint.core.checkpoint.store import Checkpoint, Keep, Request, ResumableStore, Resume, Saved
from hookpoint.core.errors import CannotSave, DamagedCheckpoint, OutsideRun
from hookpoint.storage.checkpoint import state_files
from hookpoint.storage.checkpoint.available_memory import available_bytes
from hookpoint.storage.checkpoint.background import Background
from hookpoint.storage.checkpoint.checkpoint_folder import (
    Staged,
    discard,
    is_large,
    new_staging,
    saving_to,
    verified,
    verify_written,
    write_checkpoint,
)
from hookpoint.storage.checkpoint.encryption import Key
from hookpoint.storage.checkpoint.layout import BEST, checkpoints, is_being_deleted, link_name, next_place
from hookpoint.storage.checkpoint.load_shards import filled
from hookpoint.storage.checkpoint.manifest import File, Manifest
from hookpoint.storage.checkpoint.snapshot import Snapshots
from hookpoint.storage.disk import disk
from hookpoint.storage.disk.hashing_writer import Segment
from hookpoint.storage.lineage import lineage_of_resume
from hookpoint.storage.retention import to_delete
from hookpoint.storage.run_file import RunFile
from hookpoint.storage.workdir import best_links, named_links, open_workdir
from hookpoint.storage.workdir.catalog import entries, places
from hookpoint.storage.workdir.lock import WorkdirLock
from hookpoint.storage.workdir.quarantine import move_damaged

logger = logging.getLogger("hookpoint")

SHARE_OF_FREE_MEMORY = 0.8  # the largest share of the available memory that a copy of the state may use


class CheckpointStore(ResumableStore):
    """Store a run's checkpoints in `workdir/checkpoints`. Checkpoints stay valid no matter when the process is killed.

    A checkpoint is a folder that is created atomically. A new checkpoint is read back before an old one is deleted. Only one
    store owns a workdir at a time, from `open` to `close`. For a background save, the caller waits only until the state is
    copied to host memory. The buffers for this copy are reused.

    `state["finite"]` names the tensors in each part of `state["parts"]` that must be finite; None means all tensors. This entry
    is not saved. With `resume="auto"` or `resume="must"`, a run does not resume from a checkpoint with the tag "exception". A
    checkpoint saved with a different world size raises an error unless `allow_world_change` is True. With a `key`, all files
    except the manifest are encrypted.

    >>> store = CheckpointStore("runs/mine")
    >>> store.open("auto", {})  # nothing to resume from
    >>> store.save({"epoch": 1}, step=1200, tags=["mine"]).name
    'step-00001200'
    >>> store.close()
    >>> store.open("must", {}).state
    {'epoch': 1}
    >>> store.close()
    """

    def __init__(self, workdir: str | os.PathLike[str], *, allow_world_change: bool = False, key: Key | None = None) -> None:
        self.workdir = open_workdir.local_folder(workdir)
        self._allow_world_change, self._key = allow_world_change, key
        self._lock = WorkdirLock(self.workdir)
        self._is_open = self._has_warned = self._has_links = False
        self._identity: dict[str, Any] = {}
        self._rules: dict[str, Keep] = {}
        self._limits: set[str] = set()
        self._background = Background()
        self._deleting: threading.Thread | None = None
        self.when_saved: Callable[[], object] | None = None  # called on another thread when a background save has finished
        self._snapshots = Snapshots()
        self._run_file = RunFile(self.workdir)

    @property
    def key_fingerprint(self) -> str | None:
        """The fingerprint of the key for new checkpoints; None if they are not encrypted."""
        return None if self._key is None else self._key.fingerprint

    def open(self, resume: Resume, identity: Mapping[str, Any]) -> Checkpoint | None:
        """Lock the workdir, repair it if a run was killed, and return the checkpoint to resume from, or None for a new run.

        If `resume` is "auto" or "must", return the newest valid checkpoint. If `resume` is a path, return the checkpoint at
        this path. If the run does not resume from a checkpoint in this workdir, the files of an earlier run are moved to
        previous/. If `resume` is the path of a checkpoint in this workdir, only later checkpoints are moved.

        Raises CannotSave if the workdir is not writable, WorkdirInUse if it is locked, and CannotResume if the run cannot
        resume. After an error, the workdir is not locked.
        """
        self._identity = json.loads(json.dumps(dict(identity), default=str))
        self._rules, self._limits = {}, set()
        with saving_to(self.workdir):
            disk.make_folder(self.workdir)
            self._lock.acquire()
            try:
                tensors = getattr(identity.get("model"), "tensors", None)
                checkpoint = open_workdir.prepare(self.workdir, resume, self._identity, self._allow_world_change, tensors)
            except BaseException:
                self._lock.release()
                raise
        self._is_open = True
        lineage = [] if checkpoint is None else lineage_of_resume(Path(checkpoint.path), self.workdir)
        self._run_file = RunFile(self.workdir, lineage)
        return checkpoint

    def check(self, state: Mapping[str, Any]) -> None:
        """Write the state to memory and read it back. Raise NotSaveable if this fails."""
        state_files.check(Snapshots().take(state, outlives_the_call=False))

    def fill(self, found: Checkpoint, parts: Mapping[str, Any]) -> Checkpoint:
        """Load the sharded tensors of a checkpoint.

        `parts` contains the run's objects, such as the model. Each tensor is sharded like the same tensor in these objects.
        """
        return found._replace(state=filled(found.state, Path(found.path), parts))

    def write(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        elapsed: float,
        request: Request,
        staged: tuple[Path, Mapping[str, Sequence[Any]]] | None = None,
    ) -> Saved | None:
        """Save the state. The caller may modify the state after this call.

        Returns None if the state is being saved in the background. In that case, `collect` returns the result later. If the
        host does not have enough memory for a copy, the save is synchronous.

        `staged` contains a folder from `stage` and the results of `put_shards` on all ranks.
        """
        self._refuse_if_closed()
        started = time.monotonic()
        self._wait()
        self._rules |= request.rules
        self._limits.update(request.limits)
        self._rules |= {str(tag): keep for tag, keep in request.tags.items() if keep is not None}
        in_background = request.in_background and self._fits(state)
        snapshot = self._snapshots.take(state, outlives_the_call=in_background)
        files = None if staged is None else Staged(staged[0], {name: File(*file) for name, file in staged[1].items()})
        clocks = snapshot["clocks"] if isinstance(snapshot.get("clocks"), dict) else {}
        control = snapshot.get("control")
        # The manifest lists the commands that are still to be replayed, because `hookpoint ctl RUN forget` checks them.
        if isinstance(control, dict) and (pending := control.get("pending")):
            clocks = {**clocks, "pending_commands": pending}
        tags, measured = tuple(map(str, request.tags)), {str(tag): value for tag, value in request.measured.items()}
        describe = partial(
            Manifest,
            step=int(step),
            elapsed=float(elapsed),
            tags=tags,
            clocks=clocks,
            identity=self._identity,
            measured=measured,
            info=dict(request.info),
            links=tuple(map(link_name, request.links)),
        )
        save = partial(self._save, snapshot, int(step), describe, files, started)
        if not in_background:
            return save(deletes_later=True)
        self._background.start(save, self.when_saved)
        return None

    def collect(self, *, wait: bool = False) -> list[Saved]:
        """Return the background saves that have finished since the last call. If a save has failed, raise its error instead."""
        if wait:
            self._background.wait()
        return self._background.collect()

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Write these keys and values, which describe the run, to run.json."""
        self._refuse_if_closed()
        self._run_file.update(facts)

    def described(self, resume: Resume) -> dict[str, Any]:
        """Return the crashes recorded for the run in the workdir, and whether the workdir contains a checkpoint.

        This method does not lock the workdir. The result is empty if `resume` is not "auto", or if the program was edited after
        the crashes. If the result is empty, the count of crashes starts at 0 again.
        """
        crashes = RunFile(self.workdir).earlier().get("crashes") if resume == "auto" else None
        if not crashes or is_edited_since(crashes):
            return {}
        with saving_to(self.workdir):
            return {"crashes": crashes, "has_checkpoint": bool(places(self.workdir))}

    def close(self) -> None:
        """Wait for background saves and deletions, and release the workdir. This method may be called more than once."""
        self._wait()
        for error in self._background.errors():
            logger.error("a checkpoint was not saved: %s", error)
        self._snapshots = Snapshots()
        self._is_open = False
        self._lock.release()

    def not_finite(self, named: Iterable[tuple[str, Any]]) -> list[str]:
        """Return the names of the tensors that contain NaN or infinity. This synchronizes each device once."""
        if "torch" not in sys.modules:
            return []
        from hookpoint.storage.checkpoint.check_finite import not_finite

        return not_finite(named)

    # Methods for runs with multiple ranks, in which only the chief opens its store

    def read(self, path: str | os.PathLike[str]) -> Checkpoint:
        """Verify and return a checkpoint. The store need not be open.

        Sharded tensors are not read. `fill` reads them later, and each rank reads and verifies only its own shards.
        """
        folder = Path(path)
        manifest = verified(folder, shards=False)
        return Checkpoint(folder, state_files.read_state(folder, manifest.files, manifest.encryption), manifest.info)

    def packed(self, rank_state: Mapping[str, Any]) -> bytes:
        """Convert one rank's state to bytes. Raise NotSaveable if a checkpoint cannot store the state."""
        from hookpoint.storage.checkpoint.torch_file import write_tree

        memory = io.BytesIO()
        write_tree(Snapshots().take(rank_state, outlives_the_call=False), memory)
        return memory.getvalue()

    def unpacked(self, data: bytes) -> dict[str, Any]:
        """Convert the bytes that `packed` returned back to one rank's state."""
        from hookpoint.storage.checkpoint.torch_file import read_tree

        rank_state: dict[str, Any] = read_tree(io.BytesIO(data))
        return rank_state

    def refuse_if_not_finite(self, parts: Mapping[str, Any], finite: Mapping[str, Iterable[str] | None]) -> None:
        """Raise NotFinite if a tensor that must be finite contains NaN or infinity.

        `finite` maps each part to the names of the tensors that must be finite, or to None for all tensors in this part.
        """
        if "torch" in sys.modules:
            from hookpoint.storage.checkpoint.check_finite import refuse_if_not_finite

            refuse_if_not_finite(parts, finite)

    def stage(self, step: int) -> Path:
        """Create a hidden folder for a new checkpoint. All ranks may write to this folder."""
        self._refuse_if_closed()
        self._wait()
        folder = new_staging(self._target(step))
        with saving_to(folder):
            disk.make_new_folder(folder)
        return folder

    def put_shards(self, folder: str | os.PathLike[str], tensors: Mapping[str, Any], group: Any) -> dict[str, list[Any]]:
        """Write this rank's shards, and return the size and digest of each file.

        All ranks in the group must call this method.
        """
        from hookpoint.storage.checkpoint.shard_files import write_shards

        with saving_to(Path(folder)):
            written = write_shards(Path(folder), tensors, group, self._key)
        return {name: [file.size, file.sha256] for name, file in written.items()}

    def unstage(self, folder: str | os.PathLike[str]) -> None:
        """Remove a folder that `stage` created and that is no longer needed."""
        discard(Path(folder))

    # Saving on the training thread or in the background

    def _target(self, step: int) -> Path:
        folder = checkpoints(self.workdir)
        with saving_to(folder):
            disk.make_folder(folder)
            return folder / next_place(disk.names(folder), step).name

    def _save(
        self,
        state: dict[str, Any],
        step: int,
        describe: Callable[..., Manifest],
        staged: Staged | None,
        started: float,
        *,
        deletes_later: bool = False,
    ) -> Saved:
        finite = state.pop("finite", None)
        if finite and isinstance(state.get("parts"), dict):
            self.refuse_if_not_finite(state["parts"], finite)
        target = self._target(step)
        manifest, segments = write_checkpoint(target, state, describe, staged, self._key)
        _read_back(target, segments)
        for tag in (tag for tag in manifest.tags if tag.startswith(BEST)):
            try:
                best_links.update(target, tag)
            except (OSError, DamagedCheckpoint) as error:  # DamagedCheckpoint means that the new manifest cannot be read
                logger.warning(
                    "%s could not be linked to %s; hookpoint tries again the next time the run starts: %s", tag, target, error
                )
        if not manifest.is_of_exception:
            best_links.point_last(target)
        named_links.create(target, manifest.links)
        self._has_links |= bool(manifest.links)
        hidden = self._hide_old()
        if hidden and deletes_later and is_large(manifest):  # deleting 800 MB takes 0.2 s, so use another thread
            self._deleting = threading.Thread(target=_discard_all, args=(hidden,), name="hookpoint-delete")
            self._deleting.start()
        else:
            _discard_all(hidden)
        if self._has_links:
            named_links.remove_broken(self.workdir)
        return Saved(target, step, list(manifest.tags), time.monotonic() - started)

    def _hide_old(self) -> list[Path]:
        """Rename old checkpoints to hidden names, so that users never see a half-deleted folder. Return the paths to delete."""
        folder = checkpoints(self.workdir)
        try:
            hidden = [folder / name for name in disk.names(folder) if is_being_deleted(name)]  # an earlier deletion failed
            for entry in to_delete(entries(self.workdir), self._rules, self._limits):
                new = entry.path.with_name(disk.hidden("deleting", entry.path.name))
                disk.rename(entry.path, new)
                hidden.append(new)
            if hidden:
                disk.sync_folder(folder)
        except Exception as error:  # a retention rule may also fail; the next save tries again
            logger.warning("old checkpoints in %s could not be deleted: %s", folder, error)
            return []
        return hidden

    def _wait(self) -> None:
        """Wait until no checkpoint is being written or deleted."""
        self._background.wait()
        if self._deleting is not None and self._deleting.is_alive():
            self._deleting.join()

    def _fits(self, state: Mapping[str, Any]) -> bool:
        """Return whether the host has enough memory for a copy of the state. If not, log a warning once."""
        free = available_bytes()
        if free is None:
            return True
        needed = self._snapshots.missing_bytes(state, enough=SHARE_OF_FREE_MEMORY * free)
        if needed < SHARE_OF_FREE_MEMORY * free:
            return True
        if not self._has_warned:
            self._has_warned = True
            sizes = f"a copy needs {needed / 2**20:.0f} MiB, and {free / 2**20:.0f} MiB are free"
            logger.warning("checkpoints are not written in the background: %s", sizes)
        return False

    def _refuse_if_closed(self) -> None:
        if not self._is_open:
            raise OutsideRun(f"the store for {self.workdir} is not open.", call='store.open("auto", {}) before it is used')


def _discard_all(paths: Sequence[Path]) -> None:
    for path in paths:
        discard(path)


def _read_back(target: Path, segments: Mapping[str, Sequence[Segment]]) -> None:
    """Verify a new checkpoint. If it is damaged, rename it and raise CannotSave."""
    try:
        with saving_to(target):
            verify_written(target, segments)
    except DamagedCheckpoint as error:
        try:
            move_damaged(target, error)
        except OSError as failure:
            logger.warning("%s It could not be renamed: %s", error, failure)
        raise CannotSave(f"{target} differs from what was written.", check="the disk", errno=errno.EIO) from error
