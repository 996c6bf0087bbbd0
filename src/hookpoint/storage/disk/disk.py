"""Disk: all file work of checkpoints. It is made of elementary operations: see `hookpoint.storage.disk.fs_calls`.

Folders are made 0700 and files 0600. A file is only ever created where nothing was, never through a symbolic link.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from hookpoint.storage.disk.fs_calls import perform
from hookpoint.storage.disk.hashing_writer import PIECE_BYTES, NewFile, sync

NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, errno.ENOSYS)

# Files


def write(path: Path, data: bytes) -> None:
    """Make a file of this content, on disk for good."""
    with NewFile(path) as file:
        file.write(data)


def replace(path: Path, data: bytes) -> None:
    """Write a file atomically, in place of one that exists."""
    staged = path.with_name(hidden("staging", path.name))
    try:
        write(staged, data)
        perform(lambda: os.replace(staged, path), "replace", staged, target=os.fspath(path))
    except OSError:
        if exists(staged):
            remove(staged)
        raise
    sync_folder(path.parent)


def pieces(path: Path) -> Iterator[bytes]:
    """Yield what is in a file."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    descriptor = perform(lambda: os.open(path, flags), "open", path)
    try:
        while piece := perform(lambda: os.read(descriptor, PIECE_BYTES), "read", path, descriptor=descriptor):
            yield piece
    finally:
        os.close(descriptor)


def read(path: Path) -> bytes:
    """Return what is in a file."""
    return b"".join(pieces(path))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    for piece in pieces(path):
        found.update(piece)
    return found.hexdigest()


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or make a copy where the file system has no links."""
    try:
        perform(lambda: os.link(source, target), "link", source, target=os.fspath(target))
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with NewFile(target) as copy:
            for piece in pieces(source):
                copy.write(piece)


def point(name: Path, target: str) -> None:
    """Make `name` a symbolic link to `target`, in one step also where it is one already; never in place of anything else."""
    found = status(name)
    if found is not None and not stat.S_ISLNK(found.st_mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(name))
    new = name.with_name(hidden("staging", name.name))
    perform(lambda: os.symlink(target, new), "symlink", new, target=target)
    try:
        perform(lambda: os.replace(new, name), "replace", new, target=os.fspath(name))
    except OSError:
        remove(new)
        raise


# Folders


def make_folder(path: Path) -> None:
    """Make a folder, and what it is in, each for good before the next; what is there stays as it is."""
    if not is_folder(path, follow=True):
        if path.parent != path:
            make_folder(path.parent)
        perform(lambda: os.mkdir(path, 0o700), "mkdir", path)
        sync_folder(path.parent)


def make_new_folder(path: Path) -> None:
    """Make a folder where nothing is. Its name is on disk for good when the folder it is in is synced."""
    perform(lambda: os.mkdir(path, 0o700), "mkdir", path)


def sync_folder(path: Path) -> None:
    """Put the names in a folder on disk for good, where the file system can."""
    flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = perform(lambda: os.open(path, flags), "open", path)
    try:
        perform(lambda: sync(descriptor), "fsync", path, descriptor=descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Give a file or folder another name, never one that is taken.

    Between the look and the renaming nobody else may make that name: one process writes to a workdir.
    """
    if exists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target))
    perform(lambda: os.rename(source, target), "rename", source, target=os.fspath(target))


def remove(path: Path) -> None:
    """Remove a file, or a folder and what is in it, following no symbolic link."""
    if is_folder(path):
        for name in names(path):
            remove(path / name)
        perform(lambda: os.rmdir(path), "rmdir", path)
    else:
        perform(lambda: os.unlink(path), "unlink", path)


def names(path: Path) -> list[str]:
    """Return what is in a folder, sorted; nothing where there is no folder."""
    try:
        return sorted(perform(lambda: os.listdir(path), "list", path))
    except FileNotFoundError:
        return []


# Looking


def status(path: Path, *, follow: bool = False) -> os.stat_result | None:
    """Return what the file system says of a path, or None where there is nothing."""
    try:
        return perform(lambda: os.stat(path, follow_symlinks=follow), "stat", path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def exists(path: Path) -> bool:
    return status(path) is not None


def is_folder(path: Path, *, follow: bool = False) -> bool:
    found = status(path, follow=follow)
    return found is not None and stat.S_ISDIR(found.st_mode)


def is_file(path: Path) -> bool:
    found = status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_link(path: Path) -> bool:
    found = status(path)
    return found is not None and stat.S_ISLNK(found.st_mode)


def is_same(one: Path, other: Path) -> bool:
    """Say whether two names are of one file."""
    first, second = status(one), status(other)
    return first is not None and second is not None and os.path.samestat(first, second)


def hidden(kind: str, name: str) -> str:
    """Return a hidden name that nobody has."""
    return f".{kind}-{name}-{secrets.token_hex(8)}"


def free_bytes(path: Path) -> int | None:
    """Return how much room there is for us where a path is, or would be; None where nobody says."""
    for place in (path, *path.absolute().parents):
        try:
            found = os.statvfs(place)
        except (OSError, AttributeError):
            continue
        return found.f_bavail * found.f_frsize
    return None
