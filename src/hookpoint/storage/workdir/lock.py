"""Lock: one writer per workdir."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import stat
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from hookpoint.core.errors import WorkdirInUse

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("hookpoint")

NAME = ".lock"
MOST_BYTES = 4096  # of a record; anything longer is none of ours
HELD_ELSEWHERE = (errno.EACCES, errno.EAGAIN)

# Record locks of one process never conflict with each other, so its loops are told apart here. The process is a part of
# the key: what a forked child inherits of this table says nothing about the child.
_held: dict[tuple[Path, int], WorkdirLock] = {}


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that writes to a workdir. When it was started tells it from a later one with the same number."""

    host: str
    pid: int
    boot: str | None
    started: int | None  # clock ticks after the boot
    since: str

    @classmethod
    def here(cls) -> Holder:
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        return cls(socket.gethostname(), os.getpid(), _boot(), _started(os.getpid()), now)

    @classmethod
    def parsed(cls, record: bytes) -> Holder | None:
        """Return who wrote the record, or None where there is none or it makes no sense."""
        try:
            holder = cls(**json.loads(record))
            return holder if isinstance(holder.pid, int) and holder.pid > 0 else None
        except (ValueError, TypeError):
            return None

    def runs(self) -> bool:
        """Say whether this very process is running on this host, as far as that can be known, and is another one than we."""
        if (self.host, self.boot) != (socket.gethostname(), _boot()) or self.pid == os.getpid():
            return False
        return self.started == _started(self.pid) and _runs(self.pid)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class WorkdirLock:
    """Hold a workdir against every other process and every other loop of this one.

    The lock is a POSIX record lock on `.lock` in the workdir: it ends with the process, however that ends, and is not
    inherited by worker processes. The file also says who holds it; it is emptied by `release` and never deleted. While a
    lock is held, nothing else in the process may open that file: closing any descriptor of it would drop the lock.
    """

    def __init__(self, workdir: str | os.PathLike[str]) -> None:
        self._workdir = Path(workdir)
        self._path = self._workdir / NAME
        self._key: tuple[Path, int] | None = None
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the workdir, which is made if it is not there, or raise WorkdirInUse and leave everything as it is."""
        self._workdir.mkdir(parents=True, exist_ok=True)
        key = (self._workdir.resolve(), os.getpid())
        if _held.setdefault(key, self) is not self:  # one step, so that two threads cannot both pass
            raise WorkdirInUse(
                f"{self._workdir} is being written to by another loop of this process.",
                end="that loop first: leave its with block",
                choose="another workdir for one of the two",
            )
        if self._key == key:
            return
        self._key = key
        try:
            self._descriptor = self._take()
        except BaseException:
            del _held[key]
            self._key = None
            raise

    def release(self) -> None:
        """Let go of the workdir. Nothing happens where it is not held, and in a forked child of the holder."""
        if self._key is None or self._key[1] != os.getpid():
            return
        try:
            os.ftruncate(self._descriptor, 0)
        except OSError:  # the next one then finds the record of a process that is gone, or of itself
            logger.warning("%s could not be emptied", self._path)
        finally:
            os.close(self._descriptor)  # which unlocks it
            _held.pop(self._key, None)
            self._key, self._descriptor = None, -1

    def _take(self) -> int:
        flags = os.O_RDWR | os.O_CREAT
        for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"):  # the last for a pipe of that name, which would wait for ever
            flags |= getattr(os, name, 0)
        descriptor = os.open(self._path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "is no plain file", str(self._path))
            locked = _lock(descriptor)
            holder = Holder.parsed(os.read(descriptor, MOST_BYTES))
            if locked is False:
                raise self._in_use(holder)
            if holder is not None and holder.runs():  # the lock says nothing on a file system without locks
                raise self._in_use(holder, delete=f"{self._path} if that process does not run")
            if holder is not None:
                logger.warning("%s was held by %s, which is gone; taken over", self._workdir, holder)
            _write(descriptor, json.dumps(asdict(Holder.here())).encode())
            return descriptor
        except BaseException:
            os.close(descriptor)
            raise

    def _in_use(self, holder: Holder | None, **cures: str) -> WorkdirInUse:
        return WorkdirInUse(
            f"{self._workdir} is being written to by {holder or 'another process'}.",
            wait=f"until it ends, or stop it: kill {holder.pid}" if holder else "until it ends",
            choose="another workdir for this run",
            **cures,
        )


def holder_of(workdir: str | os.PathLike[str]) -> Holder | None:
    """Return who writes to a workdir now, as far as that can be known from here; None where nobody does."""
    if (Path(workdir).resolve(), os.getpid()) in _held:  # whose lock would end with the closing of the file
        return Holder.here()
    try:
        path = Path(workdir) / NAME
        holder = Holder.parsed(path.read_bytes()[:MOST_BYTES]) if path.is_file() else None
    except OSError:
        return None
    is_elsewhere = holder is not None and holder.host != socket.gethostname()
    return holder if holder is not None and (is_elsewhere or holder.runs()) else None


def _lock(descriptor: int) -> bool | None:
    """Lock the file; return False if another process has it, and None where files cannot be locked."""
    if fcntl is None:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as error:
        return False if error.errno in HELD_ELSEWHERE else None


def _write(descriptor: int, record: bytes) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, record)
    os.ftruncate(descriptor, len(record))


def _boot() -> str | None:
    """Return the name of this boot of the machine, where the system has one: process numbers start again with each."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _started(pid: int) -> int | None:
    """Return when a process was started, in clock ticks after the boot; None where it is gone or cannot be asked."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()  # its name may hold blanks and brackets
        return None if fields[0] in b"ZX" else int(fields[19])  # a zombie holds no lock
    except (OSError, IndexError, ValueError):
        return None


def _runs(pid: int) -> bool:
    if os.name == "nt":  # where os.kill(pid, 0) would interrupt it, and no other means is at hand
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
