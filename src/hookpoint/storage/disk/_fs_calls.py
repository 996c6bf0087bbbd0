"""File system calls that can be intercepted one by one.

`hookpoint.storage.disk.disk` uses them for all file operations on checkpoints. Tests use `intercepted` to watch or change the
calls from all threads:

    def full_at_the_third(operation, proceed):
        seen.append(operation.name)
        if len(seen) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", operation.path)
        return proceed()

    with intercepted(full_at_the_third):
        store.write(...)

`proceed()` runs the operation and returns its result. An interceptor can raise an error instead, kill the process before or
after the operation, write part of `operation.data` to `operation.descriptor` and then raise an error, or record operations to
simulate a power loss. `operation.path` is set even if the file is already open. The operations are:

    change   mkdir create write fsync rename replace link symlink unlink rmdir
    read     open read list stat

Closing a file is not an operation, because the data is already on disk after fsync. Once a checkpoint is verified, torch and
safetensors read its files directly, without these calls.
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
    """One operation on a path. `target` is the new name, or the target of a symbolic link."""

    name: str
    path: str
    target: str | None = None
    data: memoryview | None = None  # only valid during the operation
    descriptor: int | None = None

    @property
    def changes(self) -> bool:
        """Whether the operation may change the disk."""
        return self.name in CHANGES


Interceptor = Callable[[Operation, Callable[[], Any]], Any]

_interceptor: Interceptor | None = None


@contextmanager
def intercepted(by: Interceptor) -> Iterator[None]:
    """Inside a `with` block, call `by(operation, proceed)` in place of each operation. This applies to all threads."""
    global _interceptor
    before, _interceptor = _interceptor, by
    try:
        yield
    finally:
        _interceptor = before


def perform(proceed: Callable[[], T], name: str, path: str | os.PathLike[str], **more: Any) -> T:
    """Run one operation, or pass it to the interceptor if there is one."""
    interceptor = _interceptor
    if interceptor is None:
        return proceed()
    result: T = interceptor(Operation(name, os.fspath(path), **more), proceed)
    return result
