"""Check the names of the files that monitors write to the workdir."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, TypeVar

from hookpoint.core.callback.callback import Callback
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


class FileMonitor(Callback):
    """A monitor that writes the file `filename` in the workdir."""

    filename: str

    def check_own_file(self, run: Run) -> None:
        """Raise BadLoop if an earlier monitor of the run already writes this file."""
        for other in earlier_monitors(FileMonitor, self, run):
            if other.filename == self.filename:
                one = "another" if type(other) is type(self) else "the"
                raise BadLoop(
                    f"{type(self).__name__}: {one} {type(other).__name__} of this run already writes {self.filename}.",
                    give="filename=, a different name",
                )


def earlier_monitors(kind: type[T], monitor: Callback, run: Run) -> list[T]:
    """Return the monitors of a class that come before this one in the run's list of callbacks.

    Without a workdir, the list is empty, because no monitor writes a file.
    """
    found = list(run.callbacks.values()) if run.workdir is not None else []
    earlier = found[: next((place for place, other in enumerate(found) if other is monitor), 0)]
    return [callback for callback in earlier if isinstance(callback, kind)]
