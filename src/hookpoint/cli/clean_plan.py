"""Plan what to delete from a run, and compute the space that this frees. Only files that hookpoint writes are deleted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.run_folder.checkpoint_list import Listed
from hookpoint.run_folder.run_folder import EVENTS, SCALARS, RunFolder
from hookpoint.storage.checkpoint.checkpoint_folder import FINDER, verified
from hookpoint.storage.checkpoint.layout import (
    BEST,
    CHECKPOINTS,
    DAMAGED,
    LAST,
    MANIFEST,
    PREVIOUS,
    SHARD,
    SHARDS,
    TENSOR_DUMPS,
    Place,
    is_being_deleted,
    is_leftover,
)
from hookpoint.storage.checkpoint.state_files import JSON, TORCH
from hookpoint.storage.run_file import NAME as RUN_FILE
from hookpoint.storage.workdir.retention import OWN_TAGS

BY_SAVERS = frozenset({"model", "backup"})
SAVER = re.compile(r"(?:ModelSaver|ModelCheckpoint)\((.+)\)(?:#\d+)?")
NUMBERED = re.compile(r"\d{3,}")
TENSORBOARD = "tensorboard"
HALF_DELETED = "half deleted"
OURS = frozenset({MANIFEST, FINDER, TORCH, JSON})
EVENT_FILE = "events.out.tfevents."


@dataclass(frozen=True, slots=True)
class Deletion:
    """Files to delete, folders to delete if they are empty then, and a name for them.

    `checkpoint` is the folder of a checkpoint. It is renamed before its first file is deleted.
    """

    what: str
    why: str
    files: tuple[Path, ...]
    folders: tuple[Path, ...] = ()
    checkpoint: Path | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to delete, and which checkpoints stay for which reason."""

    deletions: tuple[Deletion, ...]
    kept: tuple[tuple[str, str], ...]

    @property
    def freed_bytes(self) -> int:
        """The space that this frees. A file that has another hard link frees none."""
        links: dict[tuple[int, int], list[int]] = {}
        for path in {path for deletion in self.deletions for path in deletion.files}:
            with suppress(OSError):
                status = os.lstat(path)
                links.setdefault((status.st_dev, status.st_ino), [status.st_nlink, status.st_size, 0])[2] += 1
        return sum(size for count, size, going in links.values() if going >= count)


def plan_deletions(run: RunFolder, *, logs: bool, previous: bool, everything: bool, tags: frozenset[str] = frozenset()) -> Plan:
    """Return what to delete. Checkpoints with these `tags` may go, in addition to those that savers have tagged."""
    deletions: list[Deletion] = []
    kept: list[tuple[str, str]] = []
    folder = run.path
    if everything:
        listed = [one for one in run.checkpoints if _is_folder(one.path)]
        deletions += [_checkpoint(one, ", ".join(one.tags) or one.problem) for one in listed]
        deletions += _in_checkpoints(folder, damaged=True)
    else:
        deletions, kept = _old(run, tags)
        deletions += _in_checkpoints(folder, damaged=False)
    if logs or everything:
        deletions += _logs(folder)
    if previous or everything:
        deletions += _previous(folder)
    if everything:
        deletions += _files(folder, "the description of the run", (RUN_FILE,))
        deletions += [*_tree(folder / TENSOR_DUMPS, "dumped tensors", r".+-ep\d+.*\.png|DumpTensor-.*\.npz")]
    return Plan(tuple(one for one in deletions if one.files or one.folders), tuple(kept))


def _old(run: RunFolder, tags: frozenset[str]) -> tuple[list[Deletion], list[tuple[str, str]]]:
    """Return the checkpoints that may go, and those that stay."""
    stepped = [one for one in run.checkpoints if not one.is_best]
    newest = next((one for one in reversed(stepped) if _is_good(one)), None)
    newest_best = {tag: one for one in stepped for tag in one.tags if tag.startswith(BEST)}
    named = run.facts.get("callbacks")
    given = {found[1] for name in (named if isinstance(named, list) else ()) if (found := SAVER.fullmatch(str(name)))}
    may_go = OWN_TAGS | BY_SAVERS | given | tags
    going, kept = [], []
    for one in stepped:
        protected = [tag for tag in one.tags if tag not in may_go and not tag.startswith(BEST)]
        if _is_half_deleted(one, newest):
            going.append(_checkpoint(one, HALF_DELETED))
        elif newest is None:
            kept.append((one.path.name, "no checkpoint is valid"))
        elif one is newest:
            kept.append((one.path.name, "the newest valid one"))
        elif one.manifest is None:
            kept.append((one.path.name, one.problem))
        elif protected or not one.tags:
            kept.append((one.path.name, f"tagged {', '.join(protected)}" if protected else "it has no tag"))
        elif best := [tag for tag in one.tags if newest_best.get(tag) is one]:
            kept.append((one.path.name, f"the newest {', '.join(best)}"))
        else:
            going.append(_checkpoint(one, ", ".join(one.tags)))
    return going, kept


def _is_half_deleted(one: Listed, newest: Listed | None) -> bool:
    """Return whether a killed `clean` has left this checkpoint.

    `clean` removes the manifest first, and every complete checkpoint has one. The folder has a renamed manifest, or contains
    only files of a checkpoint. Without a renamed manifest it may also be damaged: it stays if no newer checkpoint is valid.
    """
    names = _names(one.path)
    if any(map(_is_mark, names)):
        return True
    is_older = newest is not None and one.step is not None and newest.step is not None and one.step < newest.step
    are_ours = all(_is_ours(name, OURS) and _is_file(one.path / name) for name in names)
    return is_older and _is_folder(one.path) and MANIFEST not in names and are_ours


def _is_good(one: Listed) -> bool:
    """Return whether a run can resume from it. All files are read: older checkpoints may be deleted."""
    try:
        return not verified(one.path).is_of_exception
    except (DamagedCheckpoint, CannotResume, OSError):
        return False


def _checkpoint(one: Listed, why: str) -> Deletion:
    return _folder(one.path, why, OURS | set(one.manifest.files if one.manifest is not None else ()))


def _folder(path: Path, why: str, names: Set[str]) -> Deletion:
    """Return the deletion of a checkpoint's files. The manifest goes first: without it, there is no checkpoint."""
    ours = [name for name in _names(path) if _is_ours(name, names)]
    ours.sort(key=lambda name: 0 if name == MANIFEST else 2 if _is_mark(name) else 1)
    return Deletion(f"{CHECKPOINTS}/{path.name}", why, tuple(path / name for name in ours), (path,), path)


def _is_ours(name: str, names: Set[str]) -> bool:
    return name in names or name.endswith((".safetensors", SHARD)) or name.startswith(SHARDS) or _is_mark(name)


def _is_mark(name: str) -> bool:
    """Return whether this is the renamed manifest of a checkpoint that is being deleted."""
    return is_being_deleted(name) and name.startswith(f".deleting-{MANIFEST}-")


def _in_checkpoints(folder: Path, *, damaged: bool) -> Iterator[Deletion]:
    """Yield what else is in checkpoints/: leftovers of kills, and damaged checkpoints if `damaged`."""
    place = folder / CHECKPOINTS
    for name in _names(place):
        is_damaged = name.startswith(DAMAGED) and (Place.of(_stem(name)) is not None or _stem(name).startswith(BEST))
        if is_leftover(name) or (damaged and is_damaged):
            why = HALF_DELETED if is_being_deleted(name) else "incomplete" if is_leftover(name) else "damaged"
            if _is_folder(place / name):
                yield _folder(place / name, why, OURS)
            else:
                yield Deletion(f"{CHECKPOINTS}/{name}", why, (place / name,))
    if damaged and os.path.islink(place / LAST):
        yield Deletion(f"{CHECKPOINTS}/{LAST}", "a link", (place / LAST,))
    if damaged and _is_folder(place):
        yield Deletion(CHECKPOINTS, "if empty", (), (place,))


def _stem(name: str) -> str:
    return name.removeprefix(DAMAGED).partition(".")[0]


def _logs(folder: Path) -> Iterator[Deletion]:
    yield from _files(folder, "logs", (SCALARS, EVENTS))
    yield from _tree(folder / TENSORBOARD, "logs", re.escape(EVENT_FILE) + ".*")


def _previous(folder: Path) -> Iterator[Deletion]:
    place = folder / PREVIOUS
    for name in _names(place):
        if NUMBERED.fullmatch(name) and _is_folder(place / name):
            plan = plan_deletions(RunFolder(place / name), logs=True, previous=False, everything=True)
            files = tuple(path for one in plan.deletions for path in one.files)
            folders = tuple(path for one in plan.deletions for path in one.folders)
            yield Deletion(f"{PREVIOUS}/{name}", "an earlier run", files, (*folders, place / name, place))


def _files(folder: Path, why: str, names: tuple[str, ...]) -> Iterator[Deletion]:
    for name in names:
        if _is_file(folder / name):
            yield Deletion(name, why, (folder / name,))


def _tree(folder: Path, why: str, pattern: str) -> Iterator[Deletion]:
    """Yield a folder with the files in it whose names match."""
    files: list[Path] = []
    folders: list[Path] = []
    if not _is_folder(folder):
        return
    for inner, _, names in os.walk(folder):
        folders.append(Path(inner))
        files += [Path(inner, name) for name in names if re.fullmatch(pattern, name) and _is_file(Path(inner, name))]
    yield Deletion(folder.name, why, tuple(files), tuple(reversed(folders)))


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder)) if _is_folder(folder) else []
    return []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
