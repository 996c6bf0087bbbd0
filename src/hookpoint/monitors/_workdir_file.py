"""Check the names of the files that monitors write to the workdir."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, TypeVar

from hookpoint.core.errors import BadArgument, BadLoop
from hookpoint.core.run.run import Run
from hookpoint.storage.checkpoint.layout import RUN_FILES

T = TypeVar("T")


def file_name(owner: str, name: Any, default: str) -> str:
    """Return the name if it is a plain file name that no other part of hookpoint uses. Otherwise, raise BadArgument."""
    if not isinstance(name, str) or name in ("", ".", "..") or any(character in name for character in "/\\\0"):
        raise BadArgument(f"{owner}: filename must be a plain name in the workdir, got {name!r}.", write=f'"{default}"')
    if name in RUN_FILES and name != default:
        raise BadArgument(f"{owner}: filename={name!r} is the name of one of the run's own files.", write=f'"{default}"')
    return name


def folder_name(owner: str, name: Any, default: str) -> str:
    """Return the name if it is a folder in the workdir that no other part of hookpoint uses. Otherwise, raise BadArgument."""
    if not isinstance(name, str) or "\0" in name or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise BadArgument(f"{owner}: subfolder must be a folder inside the workdir, got {name!r}.", write=f'"{default}"')
    first = next(iter(PurePath(name).parts), "")
    if first in RUN_FILES and first != default:
        raise BadArgument(f"{owner}: subfolder={name!r} is the name of one of the run's own files.", write=f'"{default}"')
    return name


def earlier_monitors(kind: type[T], monitor: T, run: Run) -> list[T]:
    """Return the monitors of a class that come before this one in the run's list of callbacks.

    Without a workdir, the list is empty, because no monitor writes a file.
    """
    found = [callback for callback in run.callbacks.values() if isinstance(callback, kind) and run.workdir is not None]
    return found[: next((place for place, other in enumerate(found) if other is monitor), 0)]


def check_own_file(owner: str, filename: str, taken: Iterable[str]) -> None:
    """Raise BadLoop if an earlier monitor of the run already writes this file."""
    if filename in taken:
        raise BadLoop(f"{owner}: another {owner} of this run already writes {filename}.", give="filename=, a different name")
