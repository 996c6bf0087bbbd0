"""Find run folders: all runs below a folder, or one run by its path or name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hookpoint.core.text.secrets import masked
from hookpoint.run_folder.command_error import REFUSED, USAGE, CommandError
from hookpoint.run_folder.formatting import shown
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.run_folder.run_scanner import LEVELS, RunScanner
from hookpoint.storage.remote.remote_folder import is_url

RUNS = "runs"  # the default folder


def default_folder() -> Path:
    """Return runs/ if it exists, else the current folder."""
    return Path(RUNS) if os.path.isdir(RUNS) else Path()


def find_runs(folder: Path, *, levels: int = LEVELS, previous: bool = False) -> Iterator[Path]:
    """Yield the run folders at and below a folder. See RunScanner."""
    return RunScanner(folder, levels=levels, previous=previous).scan()


def run_names() -> dict[str, Path]:
    """Return a dict that maps the name of each run in the default folder to its path."""
    folder = default_folder()
    return {os.path.relpath(path, folder): path for path in find_runs(folder)}


def find_run(name: str) -> RunFolder:
    """Return the run at a path, or the run with this name under runs/."""
    if is_url(name) and not os.path.isdir(name):
        hint = "the commands runs, show, plot and export accept URLs"
        raise CommandError(f"{shown(masked(name))} is a URL; expected a local run folder ({hint})", USAGE)
    folders = [path for path in (Path(name), Path(RUNS) / name) if os.path.isdir(path)]
    for run in map(RunFolder, folders):
        if run.is_run:
            return run
    if folders:
        raise CommandError(_no_run_in(folders[0]), REFUSED)
    if Path(name).exists():
        raise CommandError(f"{shown(name)} is not a folder; expected a run folder", USAGE)
    names = run_names()
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        raise CommandError(f"there is no run {shown(name)}; did you mean {' or '.join(map(shown, near))}?", USAGE)
    hint = "to list all runs: hookpoint runs" if names else "there are no runs here"
    raise CommandError(f"there is no run {shown(name)}; expected a run folder or a name under {RUNS}/ ({hint})", USAGE)


def _no_run_in(path: Path) -> str:
    inside = [shown(run) for run in islice(find_runs(path, levels=2), 3)]
    hint = f"; it contains {', '.join(inside)}" if inside else ""
    try:
        os.listdir(path)
    except OSError as error:
        return f"{shown(path)} cannot be read: {error.strerror}"
    return f"there is no run in {shown(path)}: the folder has no run.json, scalars.jsonl or checkpoints{hint}"
