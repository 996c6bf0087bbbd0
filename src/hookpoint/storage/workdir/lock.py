"""Lock: make sure that only one process and one loop write to a workdir."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import stat
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from hookpoint.core.errors import WorkdirInUse

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("hookpoint")

NAME = ".lock"
MAX_BYTES = 4096  # maximum size of a record
HELD_ELSEWHERE = (errno.EACCES, errno.EAGAIN)

# Record locks within one process never conflict, so this table detects a second loop in the same process. The pid is part of
# the key, because a forked child inherits the table but not the locks.
_held: dict[tuple[Path, int], WorkdirLock] = {}


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that is writing to a workdir. Its start time distinguishes it from a later process with the same pid."""

    host: str
    pid: int
    boot: str | None
    started: int | None  # clock ticks since boot
    since: str

    @classmethod
    def this_process(cls) -> Holder:
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        return cls(socket.gethostname(), os.getpid(), _boot(), _started(os.getpid()), now)

    @classmethod
    def parsed(cls, record: bytes) -> Holder | None:
        """Parse a record. Return None if it is empty or invalid."""
        try:
            holder = cls(**json.loads(record))
            return holder if isinstance(holder.pid, int) and holder.pid > 0 else None
        except (ValueError, TypeError):
            return None

    def runs(self) -> bool:
        """Return whether this is another process on this host that is still running."""
        if (self.host, self.boot) != (socket.gethostname(), _boot()) or self.pid == os.getpid():
            return False
        return self.started == _started(self.pid) and _runs(self.pid)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class WorkdirLock:
    """Lock a workdir against all other processes and all other loops in this process.

    The lock is a POSIX record lock on the file `.lock` in the workdir. The operating system releases it when the process
    ends, and child processes do not inherit it. The file contains a record of the holder. `release` empties the file, but never
    deletes it. While the lock is held, no other code in the process may open the file, because closing any descriptor of the
    file would release the lock.
    """

    def __init__(self, workdir: str | os.PathLike[str]) -> None:
        self._workdir = Path(workdir)
        self._path = self._workdir / NAME
        self._key: tuple[Path, int] | None = None
        self._descriptor = -1

    def acquire(self, *, warn: bool = True) -> None:
        """Lock the workdir, and create it if necessary. Raise WorkdirInUse if it is already locked.

        With `warn=True`, log a warning if the last holder was killed.
        """
        self._workdir.mkdir(parents=True, exist_ok=True)
        key = (self._workdir.resolve(), os.getpid())
        if _held.setdefault(key, self) is not self:  # setdefault is atomic
            raise WorkdirInUse(
                f"{self._workdir} is in use by another loop in this process.",
                end="that loop first: leave its with block",
                choose="another workdir for one of the two loops",
            )
        if self._key == key:
            return
        self._key = key
        try:
            self._descriptor = self._open_locked(warn)
        except BaseException:
            del _held[key]
            self._key = None
            raise

    def release(self) -> None:
        """Release the workdir. Do nothing if this object does not hold the lock, or in a process forked from the holder."""
        if self._key is None or self._key[1] != os.getpid():
            return
        try:
            os.ftruncate(self._descriptor, 0)
        except OSError:  # harmless: this process ignores its own record, and others ignore it once this process ends
            logger.warning("%s could not be emptied", self._path)
        finally:
            os.close(self._descriptor)  # also releases the lock
            _held.pop(self._key, None)
            self._key, self._descriptor = None, -1

    def _open_locked(self, warn: bool) -> int:
        flags = os.O_RDWR | os.O_CREAT
        for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"):  # without O_NONBLOCK, opening a pipe would block
            flags |= getattr(os, name, 0)
        descriptor = os.open(self._path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "is not a regular file", str(self._path))
            locked = _lock(descriptor)
            holder = Holder.parsed(os.read(descriptor, MAX_BYTES))
            if locked is False:
                raise self._in_use(holder)
            if holder is not None and holder.runs():  # this file system does not support locks
                raise self._in_use(holder, delete=f"{self._path} if that process is no longer running")
            if holder is not None and warn:
                logger.warning("%s was in use by %s, which has ended. Taking over the folder.", self._workdir, holder)
            record = json.dumps(asdict(Holder.this_process())).encode()
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, record)
            os.ftruncate(descriptor, len(record))
            return descriptor
        except BaseException:
            os.close(descriptor)
            raise

    def _in_use(self, holder: Holder | None, **cures: str) -> WorkdirInUse:
        return WorkdirInUse(
            f"{self._workdir} is in use by {holder or 'another process'}.",
            wait=f"until it ends, or stop it: kill {holder.pid}" if holder else "until it ends",
            choose="another workdir for this run",
            **cures,
        )


def holder_of(workdir: str | os.PathLike[str]) -> Holder | None:
    """Return the process that is writing to a workdir, or None. A process on another host is assumed to be running."""
    # If this process holds the lock, do not open the file, because closing it would release the lock. Resolving the path takes
    # many system calls, so do it only if this process holds any locks.
    if _held and (Path(workdir).resolve(), os.getpid()) in _held:
        return Holder.this_process()
    try:
        holder = Holder.parsed(_record_in(os.path.join(workdir, NAME)))
    except OSError:
        return None
    return holder if holder is not None and (holder.host != socket.gethostname() or holder.runs()) else None


def _record_in(path: str) -> bytes:
    """Return the record in a lock file, with as few system calls as possible. Return b"" if the file is not regular."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        return os.read(descriptor, MAX_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Lock the file. Return False if another process holds the lock, and None if files cannot be locked."""
    if fcntl is None:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as error:
        return False if error.errno in HELD_ELSEWHERE else None


@cache
def _boot() -> str | None:
    """Return the id of the current boot, or None if the system does not provide it.

    After a reboot, another process may have the same pid, so a pid alone does not identify a process.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _started(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot, or None if the process has ended or is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()  # the process name may contain spaces
        return None if fields[0] in b"ZX" else int(fields[19])  # a zombie process holds no lock
    except (OSError, IndexError, ValueError):
        return None


def _runs(pid: int) -> bool:
    if os.name == "nt":  # on Windows, os.kill(pid, 0) would interrupt the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
