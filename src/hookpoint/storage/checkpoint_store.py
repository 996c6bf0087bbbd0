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
from hookpoint.storage.checkpoint.checkpoint_folder import (
    Staged,
    cannot_save,
    discard,
    new_staging,
    verified,
    write_checkpoint,
)
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
    """Keep the checkpoints of a run in `workdir/checkpoints`, whatever kills it.

    A checkpoint is a folder that is there whole or not at all. Before one is deleted, the newer one has been read back. The
    workdir belongs to one store at a time, from `open` to `close`. A save in the background costs the caller a copy to host
    memory, which is kept for the next.

    `state["finite"]` names the tensors that must be finite for anything to be saved, for each part in `state["parts"]`;
    None stands for all of them. It is not saved itself. A checkpoint with the tag "exception" is one that "auto" and "must" do
    not go on from. One that another number of processes has made is refused, unless `allow_world_change` is set.

    >>> store = CheckpointStore("runs/mine")
    >>> store.open("auto", {})  # nothing to go on from
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
        """Take the workdir, put in order what a kill left there, and return what to go on from, or None for a fresh run.

        "auto" and "must" take the newest good checkpoint, a path that one and no other; what is in the way of the run is moved
        to previous/. Raises CannotSave where nothing can be written, WorkdirInUse, or CannotResume, and then holds nothing.
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
        """Raise NotSaveable, naming what it is, if the state could not be read back. It is written to memory for that."""
        state_files.check(Snapshots().take(state, outlives_the_call=False))

    def fill(self, found: Checkpoint, parts: Mapping[str, Any]) -> Checkpoint:
        """Return a checkpoint with the tensors in it that processes had in parts, lying as those of this run's parts do."""
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
        """Keep the state; return None if the background writes it. It may change at once; `collect` tells what came of it.

        `staged` is a folder of `stage`, and what `put_shards` has returned on all processes, which goes into it.
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
        """Return what the background has finished since the last call; raise what it failed with, once."""
        if wait:
            self._background.wait()
        return self._background.collect()

    def save(self, state: Mapping[str, Any], *, step: int, tags: Sequence[str]) -> Path:
        """Keep the state, and return its folder."""
        clocks = state.get("clocks")
        elapsed = clocks.get("elapsed", 0.0) if isinstance(clocks, Mapping) else 0.0
        saved = self.write(state, step=step, elapsed=elapsed, request=Request(dict.fromkeys(tags), in_background=False))
        assert saved is not None
        return Path(saved.path)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Add to run.json what is known of the run now."""
        self._refuse_if_closed()
        self._run_file.update(facts)

    def described(self, resume: Resume) -> dict[str, Any]:
        """Return what is known of crashes of the run in the workdir, and whether it has a checkpoint. Nothing is locked.

        Only "auto", the default, continues what was: whoever gives another `resume`, or has edited the program, counts from 0.
        """
        found = RunFile(self.workdir).earlier().get("crashes") if resume == "auto" else None
        found = None if is_edited_since(found) else found
        try:
            return {"crashes": found, "has_checkpoint": bool(places(self.workdir))} if found else {}
        except OSError as error:
            raise cannot_save(self.workdir, error) from error

    def close(self) -> None:
        """Wait for the background and let go of the workdir. Nothing happens the second time."""
        self._background.wait()
        for error in self._background.left():
            logger.error("a checkpoint was not saved, and nobody asked: %s", error)
        self._snapshots = Snapshots()
        self._is_open = False
        self._lock.release()

    def not_finite(self, named: Iterable[tuple[str, Any]]) -> list[str]:
        """Return the names of the tensors that hold NaN or infinity; waits for the device once."""
        if "torch" not in sys.modules:
            return []
        from hookpoint.storage.checkpoint.check_finite import not_finite

        return not_finite(named)

    # For a team, whose other processes have no store of their own

    def read(self, path: str | os.PathLike[str]) -> Checkpoint:
        """Return a checkpoint, all that is read of it verified before; the workdir need not be held for that.

        The parts that processes have of its tensors are not read here, but by `fill`: each reads, and verifies, its own.
        """
        folder = Path(path)
        return Checkpoint(folder, state_files.read_state(folder, verified(folder, shards=False).files))

    def packed(self, share: Mapping[str, Any]) -> bytes:
        """Return a part of a state as bytes; raise NotSaveable where it could not be read back."""
        from hookpoint.storage.checkpoint.torch_file import write_tree

        memory = io.BytesIO()
        write_tree(Snapshots().take(share, outlives_the_call=False), memory)
        return memory.getvalue()

    def unpacked(self, data: bytes) -> dict[str, Any]:
        """Return what was packed."""
        from hookpoint.storage.checkpoint.torch_file import read_tree

        share: dict[str, Any] = read_tree(io.BytesIO(data))
        return share

    def refuse_if_not_finite(self, parts: Mapping[str, Any], finite: Mapping[str, Iterable[str] | None]) -> None:
        """Raise NotFinite if one of the tensors that are named for each part holds NaN or infinity; None stands for all."""
        if "torch" in sys.modules:
            from hookpoint.storage.checkpoint.check_finite import refuse_if_not_finite

            refuse_if_not_finite(parts, finite)

    def stage(self, step: int) -> Path:
        """Make the hidden folder of a new checkpoint, for other processes to write to, too."""
        self._refuse_if_closed()
        folder = new_staging(self._target(step))
        try:
            disk.make_new_folder(folder)
        except OSError as error:
            raise cannot_save(folder, error) from error
        return folder

    def put_shards(self, folder: str | os.PathLike[str], tensors: Mapping[str, Any], group: Any) -> dict[str, list[Any]]:
        """Write this process's parts of tensors for good, with all others of the group; return size and digest of its files."""
        from hookpoint.storage.checkpoint.shard_files import write_shards

        try:
            written = write_shards(Path(folder), tensors, group)
        except OSError as error:
            raise cannot_save(Path(folder), error) from error
        return {name: [file.size, file.sha256] for name, file in written.items()}

    def unstage(self, folder: str | os.PathLike[str]) -> None:
        """Remove a folder that no checkpoint came of."""
        discard(Path(folder))

    # Saving, on the training thread or beside it

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
            except (OSError, DamagedCheckpoint) as error:  # the second where a manifest that was just written cannot be read
                logger.warning("%s could not be linked to %s, which the next start will do: %s", tag, target, error)
        if not made.is_of_exception:
            best_links.point_last(target)

    def _delete_old(self) -> None:
        """Delete what nobody wants any more: first all get hidden names, for good, so that none is ever seen half deleted."""
        folder = checkpoints(self.workdir)
        try:
            hidden = [folder / name for name in disk.names(folder) if is_being_deleted(name)]  # what failed the last time
            for entry in to_delete(entries(self.workdir), self._rules, self._limits):
                new = entry.path.with_name(disk.hidden("deleting", entry.path.name))
                disk.rename(entry.path, new)
                hidden.append(new)
            if hidden:
                disk.sync_folder(folder)
        except Exception as error:  # a rule's own, too: what is not deleted today is deleted tomorrow
            logger.warning("old checkpoints in %s could not be deleted: %s", folder, error)
            return
        for path in hidden:
            discard(path)

    def _refuse_if_closed(self) -> None:
        if not self._is_open:
            raise OutsideRun(f"the store of {self.workdir} is not open.", call='store.open("auto", {}) before it is used')


def _read_back(target: Path) -> None:
    """Make sure that a new checkpoint is what was written, or move it aside and raise CannotSave.

    Parts of tensors were read back by the processes that have written them.
    """
    try:
        verified(target, shards=False)
    except DamagedCheckpoint as error:
        try:
            move_damaged(target, error)
        except OSError as failure:
            logger.warning("%s It could not be moved aside: %s", error, failure)
        raise CannotSave(f"{target} was written, and is not what was written.", check="the disk", errno=errno.EIO) from error
    except OSError as error:
        raise cannot_save(target, error) from error
