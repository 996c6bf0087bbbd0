"""verify: check whether the checkpoints of a run are intact."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hookpoint.core.errors import CannotResume
from hookpoint.storage.checkpoint.checkpoint_folder import (
    UNREADABLE,
    is_like_a_checkpoint,
    is_refused_link,
    problem_of,
    read_manifest,
    strays,
    verified,
)
from hookpoint.storage.checkpoint.layout import Place, workdir_of
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir.catalog import best_folders, places


class Verified(NamedTuple):
    """The result for one checkpoint: the name of its folder, its step if it is known, and its problem if there is one.

    An intact checkpoint also has a `problem` if its folder contains files that the manifest does not list.
    """

    name: str
    step: int | None
    ok: bool
    problem: str

    @property
    def verdict(self) -> str:
        """The result as one line of text."""
        return (f"good; {self.problem}" if self.problem else "good") if self.ok else self.problem


@dataclass(frozen=True, slots=True)
class Verification:
    """The results for all checkpoints, oldest first."""

    rows: tuple[Verified, ...]

    @property
    def ok(self) -> bool:
        """Whether all checkpoints are intact."""
        return all(row.ok for row in self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return "no checkpoints"
        lines = [(row.name, "" if row.step is None else f"step {row.step}", row.verdict) for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def verify(path: str | os.PathLike[str]) -> Verification:
    """Check that the files of a checkpoint match its manifest.

    `path` is the folder of a checkpoint, or a workdir. In a workdir, all checkpoints and all best-… folders are checked.

    This function reads all files, but does not modify or unpickle anything. It does not need torch.
    """
    folder = Path(path)
    if not disk.is_folder(folder, follow=True):
        raise CannotResume(f"there is no folder {folder}.", give="a workdir, or the folder of a checkpoint")
    folders = [folder] if is_refused_link(folder) else _folders(Path(os.path.realpath(folder)))
    return Verification(tuple(map(_verified, folders)))


def _folders(folder: Path) -> Iterator[Path]:
    if is_like_a_checkpoint(folder):
        yield folder
        return
    workdir = workdir_of(folder)
    yield from (path for _, path in places(workdir))
    yield from best_folders(workdir)


def _verified(folder: Path) -> Verified:
    step = place.step if (place := Place.of(folder.name)) is not None else None
    try:
        step = read_manifest(folder).step
        return Verified(folder.name, step, True, strays(folder, verified(folder)))
    except UNREADABLE as error:
        return Verified(folder.name, step, False, problem_of(folder, error))
