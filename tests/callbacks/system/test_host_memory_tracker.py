from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from hookpoint.callbacks import HostMemoryTracker
from hookpoint.callbacks.system.host_memory_tracker import GB, used_bytes


def test_memory_in_use_and_free_memory_are_logged_each_epoch(train):
    run = train([HostMemoryTracker()], epochs=2, batches=2)
    assert [step for step, _ in run.monitors.get_history("HostMemory (GB)")] == [2, 4]
    assert 0 < run.metrics["HostMemory (GB)"] < psutil.virtual_memory().total / GB
    assert 0 < run.metrics["HostFreeMemory (GB)"] <= psutil.virtual_memory().total / GB


def test_memory_of_a_child_process_counts():
    before = used_bytes(psutil)
    size = 200 * 2**20
    program = f"kept = b'x' * {size}; print('ready', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"ready\n"
        assert used_bytes(psutil) - before > 0.9 * size
    finally:
        child.communicate(b"\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells what is shared")
def test_memory_shared_with_children_counts_once():
    program = f"""
import os, sys, time
import psutil
sys.path[:0] = {sys.path!r}
from hookpoint.callbacks.system.host_memory_tracker import used_bytes
kept = b"x" * 200 * 2**20
alone = used_bytes(psutil)
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)
print(used_bytes(psutil) / alone)
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.5


@pytest.mark.parametrize("error", [psutil.NoSuchProcess(1), psutil.AccessDenied(1), psutil.ZombieProcess(1)], ids=repr)
def test_a_process_that_is_gone_or_hidden_counts_as_zero(error):
    class Process:
        def memory_full_info(self):
            raise error

        def memory_info(self):
            raise psutil.NoSuchProcess(1)

        def children(self, recursive):
            return [Process()]

    class Psutil:
        Error, AccessDenied = psutil.Error, psutil.AccessDenied

    Psutil.Process = Process
    assert used_bytes(Psutil) == 0


def test_without_psutil_a_warning_is_logged_once(train, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "psutil", None)
    run = train([HostMemoryTracker()], epochs=3, batches=2)
    assert dict(run.metrics) == {}
    assert caplog.messages == ["HostMemoryTracker does nothing without psutil: pip install 'hookpoint[system]'"]


def test_no_child_process_is_left_after_a_run(train):
    before = set(psutil.Process(os.getpid()).children())  # helper processes shared by tests live until the end
    train([HostMemoryTracker()], batches=2)
    assert set(psutil.Process(os.getpid()).children()) <= before
