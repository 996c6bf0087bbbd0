"""CheckpointStore: the checkpoints of one workdir."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hookpoint.core.checkpoint.crashes import is_edited_since
from hookpoint.core.checkpoint.store import Checkpoint, Keep, Request, Resume, Saved
from hookpoint.core.errors import CannotSave, DamagedCheckpoint, OutsideRun
from hookpoint.storage.checkpoint import state_files
from hookpoint.storage.checkpoint.background import Background
from hookpoint.storage.checkpoint.checkpoint_folder import Staged, cannot_save, discard, new_staging, verified, write_checkpoint
from hookpoint.storage.checkpoint.layout import checkpoints, is_being_deleted, next_place
from hookpoint.storage.checkpoint.load_shards import filled
from hookpoint.storage.checkpoint.manifest import File, Manifest
from hookpoint.storage.checkpoint.snapshot import Snapshots
from hookpoint.storage.disk import disk
from hookpoint.storage.run_file import RunFile
from hookpoint.storage.workdir import best_links, open_workdir
from hookpoint.storage.workdir.catalog import entries, places
from hookpoint.storage.workdir.lock import WorkdirLock
from hookpoint.storage.workdir.quarantine import move_damaged
from hookpoint.storage.workdir.retention import to_delete

logger = logging.getLogger("hookpoint")


class CheckpointStore:
    """Store the checkpoints of a run in `workdir/checkpoints`, safe against a kill at any moment.

    A checkpoint is a folder that is created atomically. Before an old one is deleted, the new one is read back. One store owns
    the workdir at a time, from `open` to `close`. A save in the background costs the caller a copy to host memory, whose
    buffers are reused.

    `state["finite"]` names the tensors that must be finite, for each part in `state["parts"]`; None means all of them. It is
    not saved. "auto" and "must" do not resume from a checkpoint with the tag "exception". A checkpoint of another world size is
    refused, unless `allow_world_change` is set.

    >>> store = CheckpointStore("runs/mine")
    >>> store.open("auto", {})  # nothing to resume from
    >>> store.save({"epoch": 1}, step=1200, tags=["mine"]).name
    'step-00001200'
    >>> store.close()
    >>> store.open("must", {}).state
    {'epoch': 1}
    >>> store.close()
    """

    def __init__(self, workdir: str | os.PathLike[str], *, allow_world_change: bool = False) -> None:
        self.workdir = open_workdir.local_folder(workdir)
        self._allow_world_change = allow_world_change
        self._lock = WorkdirLock(self.workdir)
        self._is_open = False
        self._identity: dict[str, Any] = {}
        self._rules: dict[str, Keep] = {}
        self._limits: set[str] = set()
        self._background = Background()
        self._snapshots = Snapshots()
        self._run_file = RunFile(self.workdir)

    def open(self, resume: Resume, identity: Mapping[str, Any]) -> Checkpoint | None:
        """Lock the workdir, repair it after a kill, and return the checkpoint to resume from, or None for a new run.

        "auto" and "must" use the newest good checkpoint, a path only that one. Files in the way of the run are moved to
        previous/. Raises CannotSave if nothing can be written, WorkdirInUse, or CannotResume; the lock is then released.
        """
        self._identity = json.loads(json.dumps(dict(identity), default=str))
        self._rules, self._limits = {}, set()
        try:
            disk.make_folder(self.workdir)
            self._lock.acquire()
            try:
                tensors = getattr(identity.get("model"), "tensors", None)
                found = open_workdir.prepare(self.workdir, resume, self._identity, self._allow_world_change, tensors)
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise cannot_save(self.workdir, error) from error
        self._is_open = True
        self._run_file = RunFile(self.workdir)
        return found

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise NotSaveable if the state could not be read back. It is written to memory for that."""
        state_files.check(Snapshots().take(state, outlives_the_call=False))

    def fill(self, found: Checkpoint, parts: Mapping[str, Any]) -> Checkpoint:
        """Return a checkpoint with its sharded tensors, laid out like those of this run's parts."""
        return Checkpoint(found.path, filled(found.state, Path(found.path), parts))

    def write(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        elapsed: float,
        request: Request,
        staged: tuple[Path, Mapping[str, Sequence[Any]]] | None = None,
    ) -> Saved | None:
        """Save the state; return None if it is saved in the background. It may change afterwards. `collect` returns the result.

        `staged` is a folder of `stage`, and the results of `put_shards` of all ranks.
        """
        self._refuse_if_closed()
        started = time.monotonic()
        self._background.wait()
        self._rules |= request.rules
        self._limits.update(request.limits)
        self._rules |= {str(tag): keep for tag, keep in request.tags.items() if keep is not None}
        taken = self._snapshots.take(state, outlives_the_call=request.in_background)
        begun = None if staged is None else Staged(staged[0], {name: File(*file) for name, file in staged[1].items()})
        tags, measured = list(map(str, request.tags)), {str(tag): one for tag, one in request.measured.items()}
        save = partial(self._save, taken, int(step), float(elapsed), tags, started, begun, measured)
        if not request.in_background:
            return save()
        self._background.start(save)
        return None

    def collect(self, *, wait: bool = False) -> list[Saved]:
        """Return what was saved in the background since the last call, or raise its error, once."""
        if wait:
            self._background.wait()
        return self._background.collect()

    def save(self, state: Mapping[str, Any], *, step: int, tags: Sequence[str]) -> Path:
        """Save the state and return its folder."""
        clocks = state.get("clocks")
        elapsed = clocks.get("elapsed", 0.0) if isinstance(clocks, Mapping) else 0.0
        saved = self.write(state, step=step, elapsed=elapsed, request=Request(dict.fromkeys(tags), in_background=False))
        assert saved is not None
        return Path(saved.path)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Add facts about the run to run.json."""
        self._refuse_if_closed()
        self._run_file.update(facts)

    def described(self, resume: Resume) -> dict[str, Any]:
        """Return the recorded crashes of the run in the workdir, and whether it has a checkpoint. Nothing is locked.

        Only "auto", the default, continues the count. It starts at 0 with another `resume`, or after the program was edited.
        """
        found = RunFile(self.workdir).earlier().get("crashes") if resume == "auto" else None
        found = None if is_edited_since(found) else found
        try:
            return {"crashes": found, "has_checkpoint": bool(places(self.workdir))} if found else {}
        except OSError as error:
            raise cannot_save(self.workdir, error) from error

    def close(self) -> None:
        """Wait for the background and release the workdir. May be called more than once."""
        self._background.wait()
        for error in self._background.left():
            logger.error("a checkpoint was not saved: %s", error)
        self._snapshots = Snapshots()
        self._is_open = False
        self._lock.release()

    def not_finite(self, named: Iterable[tuple[str, Any]]) -> list[str]:
        """Return the names of the tensors that contain NaN or infinity. Synchronizes the device once."""
        if "torch" not in sys.modules:
            return []
        from hookpoint.storage.checkpoint.check_finite import not_finite

        return not_finite(named)

    # For a team, whose other ranks have no store

    def read(self, path: str | os.PathLike[str]) -> Checkpoint:
        """Verify and return a checkpoint. The workdir need not be open.

        Sharded tensors are read by `fill`: each rank reads and verifies its own shards.
        """
        folder = Path(path)
        return Checkpoint(folder, state_files.read_state(folder, verified(folder, shards=False).files))

    def packed(self, share: Mapping[str, Any]) -> bytes:
        """Return a part of a state as bytes. Raise NotSaveable if it could not be read back."""
        from hookpoint.storage.checkpoint.torch_file import write_tree

        memory = io.BytesIO()
        write_tree(Snapshots().take(share, outlives_the_call=False), memory)
        return memory.getvalue()

    def unpacked(self, data: bytes) -> dict[str, Any]:
        """Return the state from `packed` bytes."""
        from hookpoint.storage.checkpoint.torch_file import read_tree

        share: dict[str, Any] = read_tree(io.BytesIO(data))
        return share

    def refuse_if_not_finite(self, parts: Mapping[str, Any], finite: Mapping[str, Iterable[str] | None]) -> None:
        """Raise NotFinite if one of the named tensors of a part contains NaN or infinity; None means all."""
        if "torch" in sys.modules:
            from hookpoint.storage.checkpoint.check_finite import refuse_if_not_finite

            refuse_if_not_finite(parts, finite)

    def stage(self, step: int) -> Path:
        """Create the hidden folder of a new checkpoint, to which all ranks may write."""
        self._refuse_if_closed()
        folder = new_staging(self._target(step))
        try:
            disk.make_new_folder(folder)
        except OSError as error:
            raise cannot_save(folder, error) from error
        return folder

    def put_shards(self, folder: str | os.PathLike[str], tensors: Mapping[str, Any], group: Any) -> dict[str, list[Any]]:
        """Write this rank's shards, together with the group, and return size and digest of its files."""
        from hookpoint.storage.checkpoint.shard_files import write_shards

        try:
            written = write_shards(Path(folder), tensors, group)
        except OSError as error:
            raise cannot_save(Path(folder), error) from error
        return {name: [file.size, file.sha256] for name, file in written.items()}

    def unstage(self, folder: str | os.PathLike[str]) -> None:
        """Remove a staged folder that is not used."""
        discard(Path(folder))

    # Saving, on the training thread or in the background

    def _target(self, step: int) -> Path:
        folder = checkpoints(self.workdir)
        try:
            disk.make_folder(folder)
            return folder / next_place(disk.names(folder), step).name
        except OSError as error:
            raise cannot_save(folder, error) from error

    def _save(
        self,
        state: dict[str, Any],
        step: int,
        elapsed: float,
        tags: list[str],
        started: float,
        staged: Staged | None,
        measured: Mapping[str, Any],
    ) -> Saved:
        finite = state.pop("finite", None)
        if finite and isinstance(state.get("parts"), dict):
            self.refuse_if_not_finite(state["parts"], finite)
        target = self._target(step)
        clocks = state["clocks"] if isinstance(state.get("clocks"), dict) else {}
        known = {"clocks": clocks, "identity": self._identity, "measured": measured}
        describe = partial(Manifest.made_now, step=step, elapsed=elapsed, tags=tags, **known)
        made = write_checkpoint(target, state, lambda files: describe(files=files), staged)
        _read_back(target)
        self._name(target, made)
        self._delete_old()
        return Saved(target, step, tags, time.monotonic() - started)

    def _name(self, target: Path, made: Manifest) -> None:
        for tag in filter(best_links.is_named, made.tags):
            try:
                best_links.put(target, tag)
            except (OSError, DamagedCheckpoint) as error:  # DamagedCheckpoint: a new manifest cannot be read
                logger.warning("%s could not be linked to %s; the next start will try again: %s", tag, target, error)
        if not made.is_of_exception:
            best_links.point_last(target)

    def _delete_old(self) -> None:
        """Delete old checkpoints. They are hidden first, so that none is ever visible half deleted."""
        folder = checkpoints(self.workdir)
        try:
            hidden = [folder / name for name in disk.names(folder) if is_being_deleted(name)]  # left by a failure
            for entry in to_delete(entries(self.workdir), self._rules, self._limits):
                new = entry.path.with_name(disk.hidden("deleting", entry.path.name))
                disk.rename(entry.path, new)
                hidden.append(new)
            if hidden:
                disk.sync_folder(folder)
        except Exception as error:  # also of a rule: the next save tries again
            logger.warning("old checkpoints in %s could not be deleted: %s", folder, error)
            return
        for path in hidden:
            discard(path)

    def _refuse_if_closed(self) -> None:
        if not self._is_open:
            raise OutsideRun(f"the store of {self.workdir} is not open.", call='store.open("auto", {}) before it is used')


def _read_back(target: Path) -> None:
    """Read a new checkpoint back. If it is damaged, rename it and raise CannotSave.

    Shards were read back by the ranks that wrote them.
    """
    try:
        verified(target, shards=False)
    except DamagedCheckpoint as error:
        try:
            move_damaged(target, error)
        except OSError as failure:
            logger.warning("%s It could not be renamed: %s", error, failure)
        raise CannotSave(f"{target} does not contain what was written.", check="the disk", errno=errno.EIO) from error
    except OSError as error:
        raise cannot_save(target, error) from error
