"""Write files in a control folder atomically, and read them only if they are small, regular and owned by this user.

`open_folder` returns the file descriptor of a folder. The other functions take this descriptor instead of a path. If the folder
is later renamed or replaced, they still use the original folder.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from hookpoint.core.errors import BadControlFile
from hookpoint.core.text.plain_values import plain

MODE_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH
READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def open_folder(path: Path, *, create: bool) -> int:
    """Open a folder and return its file descriptor.

    Raise BadControlFile unless this user owns the folder and nobody else can write to it.
    """
    if create:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and not status.st_mode & MODE_OF_OTHERS:
        return descriptor
    os.close(descriptor)
    if status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}, not to user {os.geteuid()}"
        cure = {"run": "as the user who started the run"}
    else:
        problem, cure = f"has mode {stat.S_IMODE(status.st_mode):o}: others can write to it", {"run": f"chmod 700 {path}"}
    raise BadControlFile(f"{path} {problem}.", **cure)


def write_json(folder: int, name: str, value: Any, *, sync: bool = True) -> None:
    """Write a file atomically: readers see either the old content or the new, never a mixture.

    NaN and infinity become strings.
    """
    data = json.dumps(plain(value), allow_nan=False).encode() + b"\n"
    staged = f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
    descriptor = os.open(staged, CREATE, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        remove(folder, staged)
        raise


def read_json(folder: int, name: str, max_bytes: int) -> Any:
    """Return the content of a JSON file. Raise BadControlFile if it is not valid JSON, and OSError if it cannot be read."""
    data = read_bytes(folder, name, max_bytes)
    try:
        return json.loads(data, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise BadControlFile(f"{name} is not valid JSON.") from None


def read_bytes(folder: int, name: str, max_bytes: int) -> bytes:
    """Return the bytes of a file. Raise if it is a link or a pipe, too large, or not owned by this user."""
    _check(name, os.stat(name, dir_fd=folder, follow_symlinks=False), max_bytes)
    descriptor = os.open(name, READ, dir_fd=folder)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)  # check again: the file may have been replaced before it was opened
        if not status.st_nlink:  # the file was replaced after it was opened: read the new file
            return read_bytes(folder, name, max_bytes)
        _check(name, status, max_bytes)
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise BadControlFile(f"{name} is larger than {max_bytes} bytes.")
    return data


def remove(folder: int, name: str) -> bool:
    """Remove a file or an empty folder. Return whether it was removed."""
    try:
        os.unlink(name, dir_fd=folder)
        return True
    except (IsADirectoryError, PermissionError):
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder)
            return True
    except OSError:
        pass
    return False


def _check(name: str, status: os.stat_result, max_bytes: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadControlFile(f"{name} is not a regular file.")
    if status.st_uid != os.geteuid():
        raise BadControlFile(f"{name} belongs to user {status.st_uid}, not to user {os.geteuid()}.")
    if status.st_nlink != 1:
        raise BadControlFile(f"{name} has {status.st_nlink} hard links; expected one.")
    if status.st_size > max_bytes:
        raise BadControlFile(f"{name} is larger than {max_bytes} bytes.")


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
