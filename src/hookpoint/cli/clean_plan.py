"""What may be deleted of a run, and what that frees. Only files that we make: names of ours, in places of ours."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
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
    is_leftover,
)
from hookpoint.storage.checkpoint.state_files import JSON, TORCH
from hookpoint.storage.run_file import NAME as RUN_FILE
from hookpoint.storage.workdir.retention import OWN_TAGS

BY_SAVERS = frozenset({"model", "backup"})
SAVER = re.compile(r"(?:ModelSaver|ModelCheckpoint)\((.+)\)(?:#\d+)?")
NUMBERED = re.compile(r"\d{3,}")
TENSORBOARD = "tensorboard"
EVENT_FILE = "events.out.tfevents."


@dataclass(frozen=True, slots=True)
class Deletion:
    """Something to delete: its files, folders that go if nothing else is in them, and what to call it."""

    what: str
    why: str
    files: tuple[Path, ...]
    folders: tuple[Path, ...] = ()


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
        deletions += [_checkpoint(one, ", ".join(one.tags) or one.problem) for one in run.checkpoints]
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
        if newest is None:
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


def _is_good(one: Listed) -> bool:
    """Say whether a run can go on from it; reads all of it, because everything before it may be deleted."""
    try:
        return not verified(one.path).is_of_exception
    except (DamagedCheckpoint, CannotResume, OSError):
        return False


def _checkpoint(one: Listed, why: str) -> Deletion:
    names = {MANIFEST, FINDER, TORCH, JSON} | set(one.manifest.files if one.manifest is not None else ())
    return _folder(one.path, why, names)


def _folder(path: Path, why: str, names: set[str]) -> Deletion:
    """Return the files of a checkpoint's folder that are ours. The manifest goes first: a half deleted one is none."""
    ours = [name for name in _names(path) if name in names or name.endswith((".safetensors", SHARD)) or name.startswith(SHARDS)]
    ours.sort(key=lambda name: name != MANIFEST)
    return Deletion(f"{CHECKPOINTS}/{path.name}", why, tuple(path / name for name in ours), (path,))


def _in_checkpoints(folder: Path, *, damaged: bool) -> Iterator[Deletion]:
    """Yield what is in checkpoints/ besides checkpoints: what kills left, and, if asked for, what was found damaged."""
    place = folder / CHECKPOINTS
    for name in _names(place):
        is_damaged = name.startswith(DAMAGED) and (Place.of(_stem(name)) is not None or _stem(name).startswith(BEST))
        if is_leftover(name) or (damaged and is_damaged):
            why = "half made or half deleted" if is_leftover(name) else "damaged"
            if _is_folder(place / name):
                yield _folder(place / name, why, {MANIFEST, FINDER, TORCH, JSON})
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
