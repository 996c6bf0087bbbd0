"""Find run folders: all runs below a folder, or one run by its path or name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hookpoint.run_folder.command_error import REFUSED, USAGE, CommandError
from hookpoint.run_folder.formatting import shown
from hookpoint.run_folder.run_folder import RunFolder, looks_like_a_run
from hookpoint.storage.checkpoint.layout import CHECKPOINTS, PREVIOUS, TENSOR_DUMPS

RUNS = "runs"  # the default folder
LEVELS = 4
MAX_FOLDERS = 50_000  # the folder may be the root of a disk
NEVER = frozenset({CHECKPOINTS, TENSOR_DUMPS, "tensorboard", "node_modules", "site-packages", "__pycache__"})


def default_folder() -> Path:
    """Return runs/ if it exists, else the current folder."""
    return Path(RUNS) if os.path.isdir(RUNS) else Path()


def find_runs(folder: Path, *, levels: int = LEVELS, previous: bool = False) -> Iterator[Path]:
    """Yield the run folders at and below a folder. Each is yielded once, with real folders before links.

    Hidden folders and anything that cannot be read are skipped; so are earlier runs in previous/, unless requested.
    """
    seen: set[tuple[int, int]] = set()
    level = [os.fspath(folder)]
    for depth in range(levels + 1):
        deeper: list[str] = []
        for path in level:
            try:
                status = os.stat(path)
                key = status.st_dev, status.st_ino
                if key in seen or len(seen) >= MAX_FOLDERS:
                    continue
                seen.add(key)
                with os.scandir(path) as entries:
                    contents = sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))
            except OSError:
                continue
            if looks_like_a_run(path, {entry.name for entry in contents}):
                yield Path(path)
            skipped = NEVER if previous else NEVER | {PREVIOUS}
            if depth < levels:
                deeper += [entry.path for entry in contents if entry.name not in skipped and _is_visible_folder(entry)]
        level = sorted(deeper, key=os.path.islink)


def run_names() -> dict[str, Path]:
    """Return the runs in the default folder, by name."""
    folder = default_folder()
    return {os.path.relpath(path, folder): path for path in find_runs(folder)}


def find_run(name: str) -> RunFolder:
    """Return the run at a path, or the run with this name under runs/."""
    folders = [path for path in (Path(name), Path(RUNS) / name) if os.path.isdir(path)]
    for run in map(RunFolder, folders):
        if run.is_run:
            return run
    if folders:
        raise CommandError(_no_run_in(folders[0]), REFUSED)
    if Path(name).exists():
        raise CommandError(f"{shown(name)} is not a folder; expected the folder of a run", USAGE)
    names = run_names()
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        raise CommandError(f"there is no run {shown(name)}; did you mean {' or '.join(map(shown, near))}?", USAGE)
    hint = "hookpoint runs lists them" if names else "there is none here"
    raise CommandError(f"there is no run {shown(name)}; expected a run folder or a name under {RUNS}/ ({hint})", USAGE)


def _no_run_in(path: Path) -> str:
    inside = [shown(run) for run in islice(find_runs(path, levels=2), 3)]
    hint = f"; it contains {', '.join(inside)}" if inside else ""
    try:
        os.listdir(path)
    except OSError as error:
        return f"{shown(path)} cannot be read: {error.strerror}"
    return f"there is no run in {shown(path)}: it has no run.json, scalars.jsonl or checkpoints{hint}"


def _is_visible_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:  # a loop of links
        return False
