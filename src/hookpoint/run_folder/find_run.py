"""Finding run folders: all under a folder, or the one that somebody means."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from hookpoint.run_folder.command_error import REFUSED, USAGE, CommandError
from hookpoint.run_folder.formatting import shown
from hookpoint.run_folder.run_folder import RunFolder, looks_like_a_run
from hookpoint.storage.checkpoint.layout import CHECKPOINTS, PREVIOUS, TENSOR_DUMPS

RUNS = "runs"  # where runs are looked for when no folder is named
LEVELS = 4
MOST_FOLDERS = 50_000  # that are looked into: somebody may have named the root of a disk
NEVER = frozenset({CHECKPOINTS, TENSOR_DUMPS, "tensorboard", "node_modules", "site-packages", "__pycache__"})


def default_folder() -> Path:
    """Return where runs are when nobody says: runs/, or this folder."""
    return Path(RUNS) if os.path.isdir(RUNS) else Path()


def find_runs(folder: Path, *, levels: int = LEVELS, previous: bool = False) -> Iterator[Path]:
    """Yield the run folders at and under a folder, a few levels deep. Each is found once, by its own name before any link's.

    Hidden folders are left out, and so are earlier runs that were moved aside, unless they are asked for. What cannot be read
    is passed over.
    """
    seen: set[tuple[int, int]] = set()
    level = [os.fspath(folder)]
    for depth in range(levels + 1):
        deeper: list[str] = []
        for path in level:
            try:
                status = os.stat(path)
                key = status.st_dev, status.st_ino
                if key in seen or len(seen) >= MOST_FOLDERS:
                    continue
                seen.add(key)
                with os.scandir(path) as entries:
                    found = sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))
            except OSError:
                continue
            if looks_like_a_run(path, {entry.name for entry in found}):
                yield Path(path)
            skipped = NEVER if previous else NEVER | {PREVIOUS}
            if depth < levels:
                deeper += [entry.path for entry in found if entry.name not in skipped and _is_open_folder(entry)]
        level = sorted(deeper, key=os.path.islink)


def run_names() -> dict[str, Path]:
    """Return the runs that can be named without a path, by what to type."""
    folder = default_folder()
    return {os.path.relpath(path, folder): path for path in find_runs(folder)}


def the_run(given: str) -> RunFolder:
    """Return the run that is meant by a path or a name, or refuse with what else there is."""
    as_path, as_name = Path(given), Path(RUNS) / given
    candidates = [path for path in (as_path, as_name) if os.path.isdir(path)]
    for path in candidates:
        run = RunFolder(path)
        if run.is_run:
            return run
    if candidates:
        raise CommandError(_no_run_in(candidates[0]), REFUSED)
    if as_path.exists():
        raise CommandError(f"{shown(given)} is no folder; give the folder of a run", USAGE)
    names = run_names()
    near = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    if near:
        raise CommandError(f"there is no run {shown(given)}; did you mean {' or '.join(map(shown, near))}?", USAGE)
    there = "none was found here" if not names else "hookpoint runs lists them"
    raise CommandError(f"there is no run {shown(given)}; give the folder of a run or a name under {RUNS}/ ({there})", USAGE)


def _no_run_in(path: Path) -> str:
    inside = [shown(one) for one in _first(find_runs(path, levels=2), 3)]
    hint = f"; give one of those in it: {', '.join(inside)}" if inside else ""
    try:
        os.listdir(path)
    except OSError as error:
        return f"{shown(path)} cannot be read: {error.strerror}"
    return f"there is no run in {shown(path)}: it has no run.json, scalars.jsonl or checkpoints of ours{hint}"


def _first(paths: Iterator[Path], count: int) -> list[Path]:
    return [path for path, _ in zip(paths, range(count), strict=False)]


def _is_open_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:  # a loop of links
        return False
