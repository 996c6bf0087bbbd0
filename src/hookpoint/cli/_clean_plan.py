"""Plan what to delete from a run, and compute the space that this frees. A plan contains only files that hookpoint writes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hookpoint.run_folder.checkpoint_list import Listed
from hookpoint.run_folder.run_folder import EVENTS, SCALARS, RunFolder
from hookpoint.steering.control_folder import NAME as CONTROL
from hookpoint.storage.checkpoint import layout
from hookpoint.storage.checkpoint.checkpoint_folder import FINDER, UNREADABLE, verified
from hookpoint.storage.checkpoint.state_files import JSON, TORCH
from hookpoint.storage.disk import disk
from hookpoint.storage.retention import OWN_TAGS
from hookpoint.storage.run_file import NAME as RUN_FILE
from hookpoint.storage.run_file import as_list
from hookpoint.storage.workdir import named_links

BY_SAVERS = frozenset({"model", "backup"})
SAVER = re.compile(r"(?:ModelSaver|ModelCheckpoint)\((.+)\)(?:#\d+)?")
NUMBERED = re.compile(r"\d{3,}")
TENSORBOARD = "tensorboard"
HALF_DELETED = "half deleted"
OURS = frozenset({layout.MANIFEST, FINDER, TORCH, JSON})
EVENT_FILE = "events.out.tfevents."


@dataclass(frozen=True, slots=True)
class Deletion:
    """A named group of files to delete. Afterwards, each folder in `folders` is deleted if it is empty.

    If the group is a checkpoint, `checkpoint` is its folder. The folder or its manifest is renamed before the first file is
    deleted.
    """

    what: str
    why: str
    files: tuple[Path, ...]
    folders: tuple[Path, ...] = ()
    checkpoint: Path | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to delete, and the names of the checkpoints to keep, each with the reason."""

    deletions: tuple[Deletion, ...]
    kept: tuple[tuple[str, str], ...]

    @property
    def freed_bytes(self) -> int:
        """The number of bytes that the deletions free. Deleting a file that has another hard link frees no space."""
        links: dict[tuple[int, int], list[int]] = {}
        for path in {path for deletion in self.deletions for path in deletion.files}:
            with suppress(OSError):
                status = os.lstat(path)
                links.setdefault((status.st_dev, status.st_ino), [status.st_nlink, status.st_size, 0])[2] += 1
        return sum(size for count, size, deleted in links.values() if deleted >= count)


def plan_deletions(run: RunFolder, *, logs: bool, previous: bool, everything: bool, tags: frozenset[str] = frozenset()) -> Plan:
    """Return what to delete. By default, only checkpoints with the tags that hookpoint and its savers use are deleted.

    `tags` contains further tags whose checkpoints are deleted.
    """
    deletions: list[Deletion] = []
    kept: list[tuple[str, str]] = []
    folder = run.path
    if everything:
        folders = [checkpoint for checkpoint in run.checkpoints if disk.is_folder(checkpoint.path)]
        deletions = [_checkpoint(checkpoint, ", ".join(checkpoint.tags) or checkpoint.problem) for checkpoint in folders]
    else:
        deletions, kept = _old(run, tags)
    deletions += _in_checkpoints(folder, damaged=everything)
    if logs or everything:
        deletions += _logs(folder)
    if previous or everything:
        deletions += _previous(folder)
    if everything:
        deletions += _files(folder, "information about the run", (RUN_FILE,))
        deletions += [*_tree(folder / layout.TENSOR_DUMPS, "dumped tensors", r".+-ep\d+.*\.png|DumpTensor-.*\.npz")]
        deletions += [*_tree(folder / layout.LANDSCAPE, "the loss landscape", r"step-\d+\.safetensors|landscape\.json")]
        deletions += [*_tree(folder / CONTROL, "commands", r"\.?(?:live|\d{20}-[0-9a-f]{8})\.json(?:\..*)?|journal\.jsonl")]
    return Plan(tuple(deletion for deletion in deletions if deletion.files or deletion.folders), tuple(kept))


def _old(run: RunFolder, tags: frozenset[str]) -> tuple[list[Deletion], list[tuple[str, str]]]:
    """Return the old checkpoints to delete, and the names of those to keep, each with the reason."""
    stepped = [checkpoint for checkpoint in run.checkpoints if not checkpoint.is_best]
    newest = next((checkpoint for checkpoint in reversed(stepped) if _is_good(checkpoint)), None)
    newest_best = {tag: checkpoint for checkpoint in stepped for tag in checkpoint.tags if tag.startswith(layout.BEST)}
    savers = filter(None, (SAVER.fullmatch(str(name)) for name in as_list(run.facts.get("callbacks"))))
    deletable = OWN_TAGS | BY_SAVERS | {saver[1] for saver in savers} | tags
    deletions, kept = [], []
    for checkpoint in stepped:
        protected = [tag for tag in checkpoint.tags if tag not in deletable and not tag.startswith(layout.BEST)]
        reason = ""
        if _is_half_deleted(checkpoint, newest):
            deletions.append(_checkpoint(checkpoint, HALF_DELETED))
        elif newest is None:
            reason = "no checkpoint is valid"
        elif checkpoint is newest:
            reason = "the newest valid one"
        elif checkpoint.manifest is None:
            reason = checkpoint.problem
        elif protected or not checkpoint.tags:
            reason = f"tagged {', '.join(protected)}" if protected else "it has no tag"
        elif best := [tag for tag in checkpoint.tags if newest_best.get(tag) is checkpoint]:
            reason = f"the newest {', '.join(best)}"
        else:
            deletions.append(_checkpoint(checkpoint, ", ".join(checkpoint.tags)))
        if reason:
            kept.append((checkpoint.path.name, reason))
    return deletions, kept


def _is_half_deleted(checkpoint: Listed, newest: Listed | None) -> bool:
    """Return whether a killed `clean` has left this checkpoint half deleted.

    Every complete checkpoint has a manifest. `clean` renames or deletes the manifest before it deletes any other file. A
    half-deleted folder therefore contains a renamed manifest, or it contains no manifest and only other files of a checkpoint.
    In the second case, the folder may also be a damaged checkpoint, so it counts as half deleted only if a newer checkpoint is
    valid.
    """
    path, step, names = checkpoint.path, checkpoint.step, _names(checkpoint.path)
    if any(map(_is_renamed_manifest, names)):
        return True
    is_older = newest is not None and step is not None and newest.step is not None and step < newest.step
    are_ours = all(_is_ours(name, OURS) and disk.is_file(path / name) for name in names)
    return is_older and disk.is_folder(path) and layout.MANIFEST not in names and are_ours


def _is_good(checkpoint: Listed) -> bool:
    """Return whether a run can resume from a checkpoint.

    This reads all files of the checkpoint, because `clean` may delete every older checkpoint if this one is valid.
    """
    with suppress(*UNREADABLE):
        return not verified(checkpoint.path).is_of_exception
    return False


def _checkpoint(checkpoint: Listed, why: str) -> Deletion:
    listed = () if checkpoint.manifest is None else checkpoint.manifest.files
    return _folder(checkpoint.path, why, OURS.union(listed))


def _folder(path: Path, why: str, names: Set[str]) -> Deletion:
    """Return a Deletion of a checkpoint's files.

    The manifest is the first of these files, because the folder is no longer a checkpoint without its manifest.
    """
    ours = [name for name in _names(path) if _is_ours(name, names)]
    ours.sort(key=lambda name: 0 if name == layout.MANIFEST else 2 if _is_renamed_manifest(name) else 1)
    return Deletion(f"{layout.CHECKPOINTS}/{path.name}", why, tuple(path / name for name in ours), (path,), path)


def _is_ours(name: str, names: Set[str]) -> bool:
    is_tensor_file = name.endswith((".safetensors", layout.SHARD)) or name.startswith(layout.SHARDS)
    return name in names or is_tensor_file or _is_renamed_manifest(name)


def _is_renamed_manifest(name: str) -> bool:
    """Return whether this is the manifest of a checkpoint that is being deleted."""
    return layout.is_being_deleted(name) and name.startswith(f".deleting-{layout.MANIFEST}-")


def _in_checkpoints(run: Path, *, damaged: bool) -> Iterator[Deletion]:
    """Yield a Deletion for each incomplete folder or file that a killed process left in checkpoints/.

    With `damaged`, also yield Deletions for damaged checkpoints, for links to checkpoints, and for checkpoints/ itself.
    """
    folder = run / layout.CHECKPOINTS
    for name in _names(folder):
        original = name.removeprefix(layout.DAMAGED).partition(".")[0]
        is_damaged = name.startswith(layout.DAMAGED) and (layout.Place.of(original) or original.startswith(layout.BEST))
        if layout.is_leftover(name) or (damaged and is_damaged):
            why = HALF_DELETED if layout.is_being_deleted(name) else "incomplete" if layout.is_leftover(name) else "damaged"
            if disk.is_folder(folder / name):
                yield _folder(folder / name, why, OURS)
            else:
                yield Deletion(f"{layout.CHECKPOINTS}/{name}", why, (folder / name,))
    if damaged and disk.is_link(folder / layout.LAST):
        yield Deletion(f"{layout.CHECKPOINTS}/{layout.LAST}", "a link", (folder / layout.LAST,))
    for name in _names(folder) if damaged else ():
        if named_links.is_one(folder / name):
            yield Deletion(f"{layout.CHECKPOINTS}/{name}", "a link", (folder / name,))
    if damaged and disk.is_folder(folder):
        yield Deletion(layout.CHECKPOINTS, "if empty", (), (folder,))


def _logs(folder: Path) -> Iterator[Deletion]:
    yield from _files(folder, "logs", (SCALARS, EVENTS))
    yield from _tree(folder / TENSORBOARD, "logs", re.escape(EVENT_FILE) + ".*")


def _previous(folder: Path) -> Iterator[Deletion]:
    previous = folder / layout.PREVIOUS
    for name in _names(previous):
        if NUMBERED.fullmatch(name) and disk.is_folder(previous / name):
            plan = plan_deletions(RunFolder(previous / name), logs=True, previous=False, everything=True)
            files = tuple(path for deletion in plan.deletions for path in deletion.files)
            folders = tuple(path for deletion in plan.deletions for path in deletion.folders)
            yield Deletion(f"{layout.PREVIOUS}/{name}", "an earlier run", files, (*folders, previous / name, previous))


def _files(folder: Path, why: str, names: tuple[str, ...]) -> Iterator[Deletion]:
    for name in names:
        if disk.is_file(folder / name):
            yield Deletion(name, why, (folder / name,))


def _tree(folder: Path, why: str, pattern: str) -> Iterator[Deletion]:
    """Yield a Deletion of a folder and of its files whose names match a pattern."""
    if not disk.is_folder(folder):
        return
    tree = [(Path(inner), names) for inner, _, names in os.walk(folder)]
    files = [inner / name for inner, names in tree for name in names if re.fullmatch(pattern, name)]
    yield Deletion(folder.name, why, tuple(filter(disk.is_file, files)), tuple(inner for inner, _ in reversed(tree)))


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return disk.names(folder) if disk.is_folder(folder) else []
    return []
