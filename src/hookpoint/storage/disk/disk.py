"""Disk: all file operations for checkpoints, built on `hookpoint.storage.disk._fs_calls`.

Folders are created with mode 0700 and files with mode 0600. Only `replace` and `replacing` overwrite an existing file. No
file is written through a symbolic link.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from hookpoint.storage.disk._fs_calls import perform
from hookpoint.storage.disk.hashing_writer import PIECE_BYTES, NewFile, Segment, sync

NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, errno.ENOSYS)

# Files


def write(path: Path, data: bytes) -> None:
    """Create a new file that contains `data`, and sync it to disk."""
    with NewFile(path) as file:
        file.write(data)


def replace(path: Path, data: bytes) -> None:
    """Write a file atomically. An existing file is replaced."""
    with replacing(path) as staged:
        write(staged, data)
    sync_folder(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a hidden path to write to. When the block ends, the new file replaces `path`.

    If the block raises an error, the new file is removed.
    """
    staged = path.with_name(hidden("staging", path.name)[-200:])
    try:
        yield staged
        perform(lambda: os.replace(staged, path), "replace", staged, target=os.fspath(path))
    except BaseException:
        if exists(staged):
            remove(staged)
        raise


def pieces(path: Path, start: int = 0) -> Generator[bytes, None, None]:
    """Yield the content of a file in pieces, from the position `start` to the end."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    descriptor = perform(lambda: os.open(path, flags), "open", path)
    try:
        if start:
            os.lseek(descriptor, start, os.SEEK_SET)
        while piece := perform(lambda: os.read(descriptor, PIECE_BYTES), "read", path, descriptor=descriptor):
            yield piece
    finally:
        os.close(descriptor)


def read(path: Path) -> bytes:
    """Return the content of a file."""
    return b"".join(pieces(path))


def digest(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    sha256 = hashlib.sha256()
    for piece in pieces(path):
        sha256.update(piece)
    return sha256.hexdigest()


def matches(path: Path, segment: Segment) -> bool:
    """Read a segment of a file, and return whether it has the same digest as when it was written."""
    sha256, left = segment.before.copy(), segment.size
    content = pieces(path, segment.start)
    with closing(content):
        while left and (piece := next(content, b"")):
            sha256.update(memoryview(piece)[:left])
            left -= min(left, len(piece))
    return bool(sha256.hexdigest() == segment.sha256)


def sync_file(path: Path) -> int:
    """Sync a file to disk, and return its size."""
    with open(path, "rb") as file:
        sync(file.fileno())
        return os.fstat(file.fileno()).st_size


def link(source: Path, target: Path) -> None:
    """Create a hard link, or copy the file if the file system does not support hard links."""
    try:
        perform(lambda: os.link(source, target), "link", source, target=os.fspath(target))
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with NewFile(target) as copy:
            for piece in pieces(source):
                copy.write(piece)


def point(name: Path, target: str) -> None:
    """Make `name` a symbolic link to `target`, atomically.

    An existing link is replaced. Raises FileExistsError if a file or folder has this name.
    """
    mode = _mode(name)
    if mode and not stat.S_ISLNK(mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(name))
    with replacing(name) as new:
        perform(lambda: os.symlink(target, new), "symlink", new, target=target)


# Folders


def make_folder(path: Path) -> None:
    """Create a folder and its parents. Each folder is synced before the next one is created. Existing folders are unchanged."""
    if not is_folder(path, follow=True):
        if path.parent != path:
            make_folder(path.parent)
        try:
            perform(lambda: os.mkdir(path, 0o700), "mkdir", path)
        except FileExistsError:  # another thread or process has just created the folder
            if not is_folder(path, follow=True):
                raise
        sync_folder(path.parent)


def make_new_folder(path: Path) -> None:
    """Create a folder that must not exist yet. The caller must sync the parent folder afterwards."""
    perform(lambda: os.mkdir(path, 0o700), "mkdir", path)


def sync_folder(path: Path) -> None:
    """Sync a folder's directory entries to disk, if the file system supports it."""
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
    """Rename a file or folder. Raise FileExistsError if the new name exists.

    The check and the rename are not atomic, but only one process writes to a workdir.
    """
    if exists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target))
    perform(lambda: os.rename(source, target), "rename", source, target=os.fspath(target))


def remove(path: Path) -> None:
    """Remove a file, or a folder and its contents. Symbolic links are not followed."""
    if is_folder(path):
        for name in names(path):
            remove(path / name)
        perform(lambda: os.rmdir(path), "rmdir", path)
    else:
        perform(lambda: os.unlink(path), "unlink", path)


def names(path: Path) -> list[str]:
    """Return the sorted names in a folder, or an empty list if it does not exist."""
    try:
        return sorted(perform(lambda: os.listdir(path), "list", path))
    except FileNotFoundError:
        return []


# Status


def status(path: Path, *, follow: bool = False) -> os.stat_result | None:
    """Return the status of a path, or None if it does not exist."""
    try:
        return perform(lambda: os.stat(path, follow_symlinks=follow), "stat", path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def exists(path: Path) -> bool:
    return status(path) is not None


def is_folder(path: Path, *, follow: bool = False) -> bool:
    return stat.S_ISDIR(_mode(path, follow=follow))


def is_file(path: Path) -> bool:
    return stat.S_ISREG(_mode(path))


def is_link(path: Path) -> bool:
    return stat.S_ISLNK(_mode(path))


def _mode(path: Path, *, follow: bool = False) -> int:
    result = status(path, follow=follow)
    return 0 if result is None else result.st_mode


def is_same(path: Path, other: Path) -> bool:
    """Return whether two names refer to the same file."""
    first, second = status(path), status(other)
    return first is not None and second is not None and os.path.samestat(first, second)


def hidden(kind: str, name: str) -> str:
    """Return a unique hidden name."""
    return f".{kind}-{name}-{secrets.token_hex(8)}"


def free_bytes(path: Path) -> int | None:
    """Return the number of free bytes on the file system of `path`, or None if unknown. The path does not have to exist."""
    for folder in (path, *path.absolute().parents):
        with suppress(OSError, AttributeError):
            return shutil.disk_usage(folder).free
    return None
