"""Operations: the elementary file operations, each one system call, that can be watched and changed one by one.

All file work of checkpoints is made of them, through `hookpoint.storage.disk.disk`. To see or to change what happens at an
operation, use `intercepted`, which holds for all threads of the process:

    def full_at_the_third(operation, proceed):
        seen.append(operation.name)
        if len(seen) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", operation.path)
        return proceed()

    with intercepted(full_at_the_third):
        store.write(...)

`proceed()` does the operation and returns what it returns. So an interceptor can fail instead, kill the process before or
after, write a part of `operation.data` to `operation.descriptor` and then fail, or keep a record that a loss of power is
replayed from. Every operation carries the path of its file, those on an open file too:

    change   mkdir create write fsync rename replace link symlink unlink rmdir
    read     open read list stat

Closing a file is none: what matters of it is on disk by its fsync. When all files of a checkpoint are verified, torch and
safetensors read theirs by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

CHANGES = frozenset({"mkdir", "create", "write", "fsync", "rename", "replace", "link", "symlink", "unlink", "rmdir"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One elementary operation: what is done to which path; `target` is the new name, or where a symbolic link leads."""

    name: str
    path: str
    target: str | None = None
    data: memoryview | None = None  # only until the operation is over
    descriptor: int | None = None

    @property
    def changes(self) -> bool:
        """Whether it may change what is on disk."""
        return self.name in CHANGES


Interceptor = Callable[[Operation, Callable[[], Any]], Any]

_interceptor: Interceptor | None = None


@contextmanager
def intercepted(by: Interceptor) -> Iterator[None]:
    """Inside the block, have every elementary operation of every thread done by `by(operation, proceed)`."""
    global _interceptor
    before, _interceptor = _interceptor, by
    try:
        yield
    finally:
        _interceptor = before


def perform(proceed: Callable[[], T], name: str, path: str | os.PathLike[str], **more: Any) -> T:
    """Do one elementary operation, or have it done by whoever intercepts."""
    by = _interceptor
    if by is None:
        return proceed()
    result: T = by(Operation(name, os.fspath(path), **more), proceed)
    return result
