"""One writer per workdir, tested with real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import hookpoint
from hookpoint.core.errors import WorkdirInUse
from hookpoint.storage.workdir import lock as module
from hookpoint.storage.workdir.lock import Holder, WorkdirLock

HOLD = """
import os, sys, time
from hookpoint.core.errors import WorkdirInUse
from hookpoint.storage.workdir.lock import WorkdirLock
try:
    lock = WorkdirLock(sys.argv[1])
    lock.acquire()
except WorkdirInUse as error:
    print("refused", error)
    sys.exit(69)
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(60)
print("held", flush=True)
sys.stdin.readline()
if "release" in sys.argv:
    lock.release()
"""


@pytest.fixture
def start(tmp_path):
    """Start a process that holds the workdir until it is told to end."""
    started = []

    def make(*options):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(hookpoint.__file__).parents[1])},
        )
        started.append(process)
        return process

    def holding(*options):
        process = make(*options)
        assert process.stdout.readline() == "held\n"
        return process

    make.holding = holding
    yield make
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


@pytest.fixture
def record(tmp_path):
    """Write a lock record as another process would, and return its text."""

    def write(**fields):
        here = {name: getattr(Holder.this_process(), name) for name in Holder.__slots__}
        (tmp_path / ".lock").write_text(text := json.dumps({**here, **fields}))
        return text

    return write


@pytest.fixture
def bystander():
    """A live process that holds nothing."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate(b"\n")


def taken(tmp_path):
    lock = WorkdirLock(tmp_path)
    lock.acquire()
    lock.release()


def contents(tmp_path):
    file = tmp_path / ".lock"
    return file.read_text(), file.stat().st_mtime_ns, sorted(path.name for path in tmp_path.iterdir())


# Held


def test_the_lock_file_names_its_holder_and_is_emptied_on_release(tmp_path):
    lock = WorkdirLock(tmp_path / "new" / "run")
    lock.acquire()
    file = tmp_path / "new" / "run" / ".lock"
    found = json.loads(os.pread(lock._descriptor, 4096, 0))  # opening the file here would drop the lock
    assert (found["pid"], found["host"]) == (os.getpid(), socket.gethostname())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lock.release()
    assert file.read_bytes() == b""


def test_a_second_process_raises_and_touches_nothing(tmp_path, start):
    holder = start.holding("release")
    before = contents(tmp_path)
    second = start()
    out, _ = second.communicate(timeout=250)
    assert second.returncode == 69
    assert out.startswith(f"refused {tmp_path} is in use by process {holder.pid} on {socket.gethostname()}, since 2")
    assert out.endswith(
        f".\n  wait      until it ends, or stop it: kill {holder.pid}\n  choose    another workdir for this run\n"
    )
    assert contents(tmp_path) == before
    with pytest.raises(WorkdirInUse, match=f"process {holder.pid} on"):
        WorkdirLock(tmp_path).acquire()
    assert contents(tmp_path) == before


def test_only_one_of_many_processes_gets_the_lock(start):
    processes = [start() for _ in range(4)]
    first = [process.stdout.readline() for process in processes]
    assert sorted(line.split()[0] for line in first) == ["held", "refused", "refused", "refused"]


def test_a_held_lock_with_an_unreadable_record_raises(tmp_path, start):
    start.holding()
    (tmp_path / ".lock").write_bytes(b"{")
    with pytest.raises(WorkdirInUse) as caught:
        WorkdirLock(tmp_path).acquire()
    assert str(caught.value) == (
        f"{tmp_path} is in use by another process.\n  wait      until it ends\n  choose    another workdir for this run"
    )


# Loops of one process


def test_a_second_loop_of_this_process_raises_until_the_first_releases_it(tmp_path):
    first, second = WorkdirLock(tmp_path), WorkdirLock(str(tmp_path / "." / "x" / ".."))
    (tmp_path / "x").mkdir()
    first.acquire()
    with pytest.raises(WorkdirInUse) as caught:
        second.acquire()
    assert str(caught.value) == (
        f"{tmp_path}/x/.. is in use by another loop in this process.\n"
        "  end       that loop first: leave its with block\n"
        "  choose    another workdir for one of the two loops"
    )
    second.release()  # it holds nothing
    with pytest.raises(WorkdirInUse):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_a_failed_acquire_does_not_drop_the_lock_of_the_first_loop(tmp_path, start):
    first = WorkdirLock(tmp_path)
    first.acquire()
    with pytest.raises(WorkdirInUse):
        WorkdirLock(tmp_path).acquire()
    second = start()
    assert second.stdout.readline().startswith("refused")
    first.release()


def test_acquire_and_release_can_be_called_twice(tmp_path):
    lock = WorkdirLock(tmp_path)
    lock.acquire()
    lock.acquire()
    lock.release()
    lock.release()
    taken(tmp_path)


def test_only_one_of_many_threads_gets_the_lock(tmp_path):
    locks = [WorkdirLock(tmp_path) for _ in range(8)]
    refused, gate = [], threading.Barrier(8)

    def take(lock):
        gate.wait()
        try:
            lock.acquire()
        except WorkdirInUse as error:
            refused.append(error)

    threads = [threading.Thread(target=take, args=[lock]) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    for lock in locks:
        lock.release()


def forked(child):
    """Call the function in a forked child and return what it returned."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = child()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_neither_holds_nor_drops_the_lock(tmp_path, start):
    lock = WorkdirLock(tmp_path)
    lock.acquire()

    def child():
        lock.release()
        try:
            WorkdirLock(tmp_path).acquire()
        except WorkdirInUse as error:
            return 1 if f"process {os.getppid()} on" in str(error) else 2
        return 3

    assert forked(child) == 1
    assert start().stdout.readline().startswith("refused")
    lock.release()
    assert forked(lambda: taken(tmp_path) or 0) == 0


# Holders that are gone


def test_a_released_lock_is_acquired_without_a_message(tmp_path, start, caplog):
    holder = start.holding("release")
    holder.communicate("\n", timeout=250)
    taken(tmp_path)
    assert caplog.messages == []


@pytest.mark.parametrize("options", [[], ["fork"]], ids=["alone", "with a child that lives on"])
def test_the_lock_of_a_killed_process_is_taken_over_with_one_message(tmp_path, start, caplog, options):
    holder = start.holding(*options)
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
    taken(tmp_path)
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path} was in use by process {holder.pid} on {socket.gethostname()}, since 2")
    assert line.endswith(", which has ended. Taking over the folder.")


def test_the_record_of_a_process_that_has_ended_is_taken_over(tmp_path, record, caplog):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    record(pid=gone.pid, started=5)
    taken(tmp_path)
    assert len(caplog.messages) == 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the start time of processes")
def test_a_record_whose_pid_was_reused_is_taken_over(tmp_path, record, bystander, caplog):
    record(pid=bystander.pid, started=5)
    taken(tmp_path)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("other", [{"host": "elsewhere"}, {"boot": "another"}])
def test_a_record_of_another_host_or_boot_is_taken_over_when_the_lock_is_free(tmp_path, record, bystander, caplog, other):
    record(pid=bystander.pid, started=module._started(bystander.pid), **other)
    taken(tmp_path)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("rubbish", [b"\0\xff", b"[]", b'{"pid": 1}', b"1" * 9000, b"null"])
def test_an_invalid_record_is_ignored(tmp_path, rubbish, caplog):
    (tmp_path / ".lock").write_bytes(rubbish)
    lock = WorkdirLock(tmp_path)
    lock.acquire()
    assert Holder.parsed(os.pread(lock._descriptor, 9999, 0)) is not None
    lock.release()
    assert caplog.messages == []


@pytest.mark.parametrize("pid", ["1", -1, 0, 10**30])
def test_a_record_with_an_invalid_pid_is_ignored(tmp_path, record, pid):
    record(pid=pid, started=None)
    taken(tmp_path)


# Without file locks


@pytest.fixture(params=["Windows", "ENOLCK"])
def no_locks(request, monkeypatch):
    if request.param == "Windows":
        monkeypatch.setattr(module, "fcntl", None)
    else:

        def lockf(*_):
            raise OSError(37, "No locks available")

        monkeypatch.setattr(module.fcntl, "lockf", lockf)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_record_of_a_live_process_is_respected(tmp_path, record, bystander):
    text = record(pid=bystander.pid, started=module._started(bystander.pid))
    with pytest.raises(WorkdirInUse) as caught:
        WorkdirLock(tmp_path).acquire()
    assert str(caught.value).endswith(
        f"  choose    another workdir for this run\n  delete    {tmp_path}/.lock if that process is no longer running"
    )
    assert (tmp_path / ".lock").read_text() == text


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_record_of_a_dead_process_is_taken_over(tmp_path, record):
    record(started=5, pid=2**22 + 1)  # no process has such a pid
    taken(tmp_path)
    record()  # our own, of a loop that could not empty it
    taken(tmp_path)


def test_a_free_lock_with_the_record_of_a_live_process_raises(tmp_path, record, bystander):
    record(pid=bystander.pid, started=module._started(bystander.pid))
    with pytest.raises(WorkdirInUse, match=f"process {bystander.pid} on"):
        WorkdirLock(tmp_path).acquire()


# Other things in place of the lock file


def test_a_symbolic_link_as_the_lock_file_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("data")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    lock = WorkdirLock(tmp_path)
    with pytest.raises(OSError, match=r"\.lock"):
        lock.acquire()
    assert (tmp_path / "precious").read_text() == "data"
    (tmp_path / ".lock").unlink()
    lock.acquire()  # a failure holds nothing
    lock.release()


def test_a_pipe_as_the_lock_file_raises(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OSError, match="is not a regular file"):
        WorkdirLock(tmp_path).acquire()


def test_a_lock_that_cannot_be_emptied_is_still_released(tmp_path, monkeypatch, caplog):
    lock = WorkdirLock(tmp_path)
    lock.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        lock.release()
    assert caplog.messages == [f"{tmp_path}/.lock could not be emptied"]
    taken(tmp_path)
