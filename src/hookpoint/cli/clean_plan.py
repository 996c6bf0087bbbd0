"""What may be deleted of a run, and what that frees. Only files that we make: names of ours, in places of ours."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Set
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
    """Something to delete: its files, folders that go if nothing else is in them, and what to call it.

    `checkpoint` is its folder if it is a checkpoint, which is hidden before the first of its files goes.
    """

    what: str
    why: str
    files: tuple[Path, ...]
    folders: tuple[Path, ...] = ()
    checkpoint: Path | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to delete, and which checkpoints stay, with the reason."""

    deletions: tuple[Deletion, ...]
    kept: tuple[tuple[str, str], ...]

    @property
    def freed_bytes(self) -> int:
        """How much room this makes: a file with a name that stays frees none."""
        links: dict[tuple[int, int], list[int]] = {}
        for path in {path for deletion in self.deletions for path in deletion.files}:
            try:
                status = os.lstat(path)
            except OSError:
                continue
            links.setdefault((status.st_dev, status.st_ino), [status.st_nlink, status.st_size, 0])[2] += 1
        return sum(size for count, size, going in links.values() if going >= count)


def planned(
    run: RunFolder, *, checkpoints: bool, logs: bool, previous: bool, everything: bool, tags: frozenset[str] = frozenset()
) -> Plan:
    """Return what would be deleted. `tags` are those of checkpoints that may go, besides those that savers have given."""
    deletions: list[Deletion] = []
    kept: list[tuple[str, str]] = []
    folder = run.path
    if everything:
        listed = [one for one in run.checkpoints if _is_folder(one.path)]
        deletions += [_checkpoint(one, ", ".join(one.tags) or one.problem) for one in listed]
        deletions += _in_checkpoints(folder, damaged=True)
    elif checkpoints:
        going, kept = _old(run, tags)
        deletions += going
        deletions += _in_checkpoints(folder, damaged=False)
    if logs or everything:
        deletions += _logs(folder)
    if previous or everything:
        deletions += _previous(folder)
    if everything:
        deletions += _files(folder, "what the run is", (RUN_FILE,))
        deletions += [*_tree(folder / TENSOR_DUMPS, "tensors that were asked for", r".+-ep\d+.*\.png|DumpTensor-.*\.npz")]
    return Plan(tuple(one for one in deletions if one.files or one.folders), tuple(kept))


def _old(run: RunFolder, tags: frozenset[str]) -> tuple[list[Deletion], list[tuple[str, str]]]:
    """Tell the checkpoints that nobody needs from those that stay."""
    stepped = [one for one in run.checkpoints if not one.is_best]
    newest = next((one for one in reversed(stepped) if _is_good(one)), None)
    newest_best = {tag: one for one in stepped for tag in one.tags if tag.startswith(BEST)}
    named = run.facts.get("callbacks")
    given = {found[1] for name in (named if isinstance(named, list) else ()) if (found := SAVER.fullmatch(str(name)))}
    may_go = OWN_TAGS | BY_SAVERS | given | tags
    going, kept = [], []
    for one in stepped:
        others = [tag for tag in one.tags if tag not in may_go and not tag.startswith(BEST)]
        if _is_half_deleted(one, newest):
            going.append(_checkpoint(one, HALF_DELETED))
        elif newest is None:
            kept.append((one.path.name, "no checkpoint was found to be good"))
        elif one is newest:
            kept.append((one.path.name, "the newest that is good"))
        elif one.manifest is None:
            kept.append((one.path.name, one.problem))
        elif others or not one.tags:
            kept.append((one.path.name, f"tagged {', '.join(others)}" if others else "it has no tag"))
        elif best := [tag for tag in one.tags if newest_best.get(tag) is one]:
            kept.append((one.path.name, f"the newest {', '.join(best)}"))
        else:
            going.append(_checkpoint(one, ", ".join(one.tags)))
    return going, kept


def _is_half_deleted(one: Listed, newest: Listed | None) -> bool:
    """Say whether a `clean` that was killed has left this.

    The manifest is what it takes away first; a checkpoint is never written without one. It is marked, or there are only files
    of ours in the folder. What is not marked may also be damaged: it stays where no newer checkpoint is good.
    """
    names = _names(one.path)
    if any(map(_is_mark, names)):
        return True
    is_older = newest is not None and one.step is not None and newest.step is not None and one.step < newest.step
    are_ours = all(_is_ours(name, OURS) and _is_file(one.path / name) for name in names)
    return is_older and _is_folder(one.path) and MANIFEST not in names and are_ours


def _is_good(one: Listed) -> bool:
    """Say whether a run can go on from it; reads all of it, because everything before it may be deleted."""
    try:
        return not verified(one.path).is_of_exception
    except (DamagedCheckpoint, CannotResume, OSError):
        return False


def _checkpoint(one: Listed, why: str) -> Deletion:
    return _folder(one.path, why, OURS | set(one.manifest.files if one.manifest is not None else ()))


def _folder(path: Path, why: str, names: Set[str]) -> Deletion:
    """Return the files of a checkpoint's folder that are ours. The manifest goes first: a half deleted one is none."""
    ours = [name for name in _names(path) if _is_ours(name, names)]
    ours.sort(key=lambda name: 0 if name == MANIFEST else 2 if _is_mark(name) else 1)
    return Deletion(f"{CHECKPOINTS}/{path.name}", why, tuple(path / name for name in ours), (path,), path)


def _is_ours(name: str, names: Set[str]) -> bool:
    return name in names or name.endswith((".safetensors", SHARD)) or name.startswith(SHARDS) or _is_mark(name)


def _is_mark(name: str) -> bool:
    """Say whether this was the manifest of a checkpoint that is being deleted."""
    return is_being_deleted(name) and name.startswith(f".deleting-{MANIFEST}-")


def _in_checkpoints(folder: Path, *, damaged: bool) -> Iterator[Deletion]:
    """Yield what is in checkpoints/ besides checkpoints: what kills left, and, if asked for, what was found damaged."""
    place = folder / CHECKPOINTS
    for name in _names(place):
        is_damaged = name.startswith(DAMAGED) and (Place.of(_stem(name)) is not None or _stem(name).startswith(BEST))
        if is_leftover(name) or (damaged and is_damaged):
            why = HALF_DELETED if is_being_deleted(name) else "half made" if is_leftover(name) else "damaged"
            if _is_folder(place / name):
                yield _folder(place / name, why, OURS)
            else:
                yield Deletion(f"{CHECKPOINTS}/{name}", why, (place / name,))
    if damaged and os.path.islink(place / LAST):
        yield Deletion(f"{CHECKPOINTS}/{LAST}", "a link", (place / LAST,))
    if damaged and _is_folder(place):
        yield Deletion(CHECKPOINTS, "if nothing else is in it", (), (place,))


def _stem(name: str) -> str:
    return name.removeprefix(DAMAGED).partition(".")[0]


def _logs(folder: Path) -> Iterator[Deletion]:
    yield from _files(folder, "what was logged", (SCALARS, EVENTS))
    yield from _tree(folder / TENSORBOARD, "what was logged", re.escape(EVENT_FILE) + ".*")


def _previous(folder: Path) -> Iterator[Deletion]:
    place = folder / PREVIOUS
    for name in _names(place):
        if NUMBERED.fullmatch(name) and _is_folder(place / name):
            whole = planned(RunFolder(place / name), checkpoints=True, logs=True, previous=False, everything=True)
            files = tuple(path for one in whole.deletions for path in one.files)
            folders = tuple(path for one in whole.deletions for path in one.folders)
            yield Deletion(f"{PREVIOUS}/{name}", "an earlier run", files, (*folders, place / name, place))


def _files(folder: Path, why: str, names: tuple[str, ...]) -> Iterator[Deletion]:
    for name in names:
        if _is_file(folder / name):
            yield Deletion(name, why, (folder / name,))


def _tree(folder: Path, why: str, pattern: str) -> Iterator[Deletion]:
    """Yield a folder of ours with the files in it whose names are such as we give."""
    files: list[Path] = []
    folders: list[Path] = []
    if not _is_folder(folder):
        return
    for inner, _, names in os.walk(folder):
        folders.append(Path(inner))
        files += [Path(inner, name) for name in names if re.fullmatch(pattern, name) and _is_file(Path(inner, name))]
    yield Deletion(folder.name, why, tuple(files), tuple(reversed(folders)))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder)) if _is_folder(folder) else []
    except OSError:
        return []


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
