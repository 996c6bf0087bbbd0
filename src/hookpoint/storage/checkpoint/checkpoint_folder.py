"""Checkpoint folder: write a checkpoint atomically, and verify its files before they are read."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hookpoint.core.checkpoint.store import Checkpoint
from hookpoint.core.errors import CannotResume, CannotSave, DamagedCheckpoint
from hookpoint.storage.checkpoint.encryption import Key, encrypted
from hookpoint.storage.checkpoint.layout import BEST, MANIFEST, SHARD, Place
from hookpoint.storage.checkpoint.manifest import File, Manifest, parse_manifest
from hookpoint.storage.checkpoint.state_files import files_of, read_state
from hookpoint.storage.checkpoint.tree import named_tensors
from hookpoint.storage.disk import disk
from hookpoint.storage.disk.hashing_writer import NewFile, Segment

logger = logging.getLogger("hookpoint")

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

UNREADABLE = (DamagedCheckpoint, CannotResume, OSError)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
LARGE_BYTES = 1 << 26  # checkpoints of at least this size are written and verified in parallel
MAX_THREADS = 4
MAX_READERS = 16
SHOWN_STRAYS = 3
FINDER = ".DS_Store"  # the macOS Finder creates this file in every folder that it opens


@dataclass(frozen=True, slots=True)
class Staged:
    """A hidden staging folder and the files that the ranks have already written to it."""

    folder: Path
    files: Mapping[str, File]


def write_checkpoint(
    target: Path,
    state: dict[str, Any],
    describe: Callable[..., Manifest],
    staged: Staged | None = None,
    key: Key | None = None,
) -> tuple[Manifest, dict[str, Sequence[Segment]]]:
    """Write the state to a new folder and sync it to disk. With a key, the files are encrypted.

    Calls `describe(files=...)` to create the manifest. Returns the manifest and the segments of each file. Pass the segments to
    `verify_written`.

    All files are written to a hidden folder and synced, the manifest last. Then the folder is renamed. If this fails at any
    point, either the complete checkpoint exists, or no checkpoint with this name exists.
    """
    staging = new_staging(target) if staged is None else staged.folder
    with saving_to(target):
        try:
            if staged is None:
                disk.make_new_folder(staging)
            files = {} if staged is None else dict(staged.files)
            new = dict(files_of(state))
            total = sum(tensor.nbytes for _, tensor in named_tensors(state))
            threads = MAX_THREADS if total >= LARGE_BYTES else 1
            written = each_of(new, lambda name: _write_file(staging / name, new[name], key), threads)
            files |= {name: file for name, (file, _) in written.items()}
            manifest = describe(files=files, **({} if key is None else {"encryption": key.describe()}))
            disk.write(staging / MANIFEST, manifest.encoded())
            disk.sync_folder(staging)
            disk.rename(staging, target)
            disk.sync_folder(target.parent)
        except BaseException:
            discard(staging)
            raise
    return manifest, {name: segments for name, (_, segments) in written.items()}


def _write_file(path: Path, write: Callable[[Any], None], key: Key | None) -> tuple[File, Sequence[Segment]]:
    with NewFile(path) as file, encrypted(file, path.name, key) as stream:
        write(stream)
    return File(file.size, file.sha256), file.segments


def each_of(keys: Iterable[K], call: Callable[[K], T], threads: int) -> dict[K, T]:
    """Call a function with each key and return the results by key. If calls fail, the first error is raised.

    With `threads=1`, the calls are made in order. Otherwise, they run on this many threads.
    """
    if threads == 1:
        return {key: call(key) for key in keys}
    with ThreadPoolExecutor(threads, thread_name_prefix="hookpoint-files") as pool:
        calls = {key: pool.submit(call, key) for key in keys}
    return {key: future.result() for key, future in calls.items()}


def new_staging(target: Path) -> Path:
    """Return the path of a new hidden folder for writing a checkpoint."""
    return target.with_name(disk.hidden("staging", target.name))


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Verify all files in a checkpoint, then read its state. Raise DamagedCheckpoint if a file is damaged."""
    folder = Path(path)
    manifest = verified(folder)
    return Checkpoint(folder, read_state(folder, manifest.files, manifest.encryption), manifest.info)


def verified(folder: Path, *, shards: bool = True) -> Manifest:
    """Verify all files in a checkpoint and return its manifest. Raise DamagedCheckpoint if a file is damaged.

    Every file is read once. With `shards=False`, only the sizes of shard files are checked, because each shard is verified when
    it is read. Files that the manifest does not list are never read, so they do not count as damage. `strays` lists them.
    """
    manifest = _complete_manifest(folder)

    def verify(name: str) -> None:
        verify_file(folder, name, manifest, content=shards or not name.endswith(SHARD))

    each_of(manifest.files, verify, MAX_THREADS if is_large(manifest) else 1)
    return manifest


def verify_written(folder: Path, segments: Mapping[str, Sequence[Segment]]) -> None:
    """Read back a checkpoint that this process has just written. Raise DamagedCheckpoint if a file is missing or changed.

    The segments of all files are read in parallel. Files without segments are shards, which were already read back by the ranks
    that wrote them.
    """
    manifest = _complete_manifest(folder)
    for name in manifest.files:
        verify_file(folder, name, manifest, content=False)

    def verify(part: tuple[str, int]) -> None:
        name, number = part
        if not _read(folder, name, lambda path: disk.matches(path, segments[name][number])):
            raise _damaged(folder, f"{name} changed after it was written")

    parts = [(name, number) for name in segments for number in range(len(segments[name]))]
    each_of(parts, verify, min(MAX_READERS, os.cpu_count() or 1, len(parts)) if is_large(manifest) else 1)


def _complete_manifest(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    for name in sorted(set(manifest.files) - set(disk.names(folder))):  # report missing files before reading any file
        raise _damaged(folder, f"{name} is missing")
    return manifest


def is_large(manifest: Manifest) -> bool:
    """Return whether a checkpoint is large enough to use several threads."""
    return sum(file.size for file in manifest.files.values()) >= LARGE_BYTES


def strays(folder: Path, manifest: Manifest) -> str:
    """Describe the files that the manifest does not list. Return "" if there are none."""
    names = [name for name in disk.names(folder) if name not in manifest.files and name not in (MANIFEST, FINDER)]
    shown = ", ".join(map(ascii, names[:SHOWN_STRAYS])) + (", …" if len(names) > SHOWN_STRAYS else "")
    return f"some files are ignored, because its {MANIFEST} does not list them: {shown}" if names else ""


def verify_file(folder: Path, name: str, manifest: Manifest, *, content: bool = True) -> None:
    """Raise DamagedCheckpoint if a file's size or, with `content=True`, its digest does not match the manifest."""
    file, status = manifest.files[name], disk.status(folder / name)
    if status is None or not disk.is_file(folder / name):
        raise _damaged(folder, f"{name} is missing" if status is None else f"{name} is not a file")
    if status.st_size != file.size:
        raise _damaged(folder, f"{name} has {status.st_size} bytes instead of {file.size}")
    if content and _read(folder, name, disk.digest) != file.sha256:
        raise _damaged(folder, f"{name} changed after it was written")


def read_manifest(folder: Path) -> Manifest:
    """Return a checkpoint's manifest without verifying other files.

    Raises DamagedCheckpoint if the manifest is missing or invalid, and CannotResume if the folder is a symbolic link.
    """
    refuse_link(folder)
    if not disk.is_file(folder / MANIFEST):
        raise _damaged(folder, f"it has no {MANIFEST}")
    manifest = parse_manifest(_read(folder, MANIFEST, disk.read), str(folder))
    place = Place.of(folder.name)
    if place is not None and place.step != manifest.step:
        raise _damaged(folder, f"its manifest belongs to step {manifest.step}")
    return manifest


def refuse_link(path: Path) -> None:
    """Raise CannotResume if the path is a symbolic link with the name of a checkpoint. Other links are followed."""
    if is_refused_link(path):
        raise CannotResume(f"{path} is a symbolic link, not a checkpoint folder: move the folder here, or delete the link.")


def is_refused_link(path: Path) -> bool:
    return (Place.of(path.name) is not None or path.name.startswith(BEST)) and disk.is_link(path)


def is_like_a_checkpoint(folder: Path) -> bool:
    """Return whether a folder looks like a checkpoint, damaged or not, rather than a workdir."""
    return disk.exists(folder / MANIFEST) or Place.of(folder.name) is not None or folder.name.startswith(BEST)


def problem_of(folder: Path, error: Exception) -> str:
    """Return one line that explains why a checkpoint cannot be read. It does not contain the path."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error).splitlines()[0].removeprefix(f"{folder} is ").rstrip(".")


def discard(path: Path) -> None:
    """Remove a file or folder. If this fails, log a warning. The next run in this workdir tries again."""
    try:
        if disk.exists(path):
            disk.remove(path)
    except (OSError, MemoryError) as error:
        logger.warning("%s could not be removed: %s", path, error or type(error).__name__)


@contextmanager
def saving_to(path: Path) -> Iterator[None]:
    """Convert any OSError inside a `with` block to CannotSave."""
    try:
        yield
    except CannotSave:
        raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename and os.fspath(error.filename) != os.fspath(path) else ""
        cures = {"check": "that the folder exists and you may write to it"}
        if error.errno in NO_ROOM:
            free = disk.free_bytes(path)
            room = "" if free is None else f" ({free / 2**20:.0f} MiB are free)"
            cures = {"make": f"room on this disk{room}", "run": "hookpoint clean RUN to delete the run's old checkpoints"}
        message = f"{path} could not be written: {error.strerror or error}{where}."
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            wrong = Path(os.fsdecode(error.filename or path))
            if file := next((one for one in (wrong, *wrong.parents) if one.is_file()), None):
                message, cures = f"{file} is a file, not a folder.", {"give": "another folder, or move the file away"}
        raise CannotSave(message, **cures, errno=error.errno) from error


def _read(folder: Path, name: str, read: Callable[[Path], Any]) -> Any:
    try:
        return read(folder / name)
    except FileNotFoundError as error:  # another process may be deleting the file
        raise _damaged(folder, f"{name} is missing") from error
    except OSError as error:
        if error.errno == errno.EIO:  # other errors do not mean that the file is damaged
            raise _damaged(folder, f"{name} cannot be read from the disk") from error
        raise


def _damaged(folder: Path, why: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"{folder} is damaged: {why}.")
