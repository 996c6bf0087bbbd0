"""Of two processes in one workdir, one writes and the other touches nothing; the lock of a dead process is taken over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from scale import FULL, times
from subject import Variant

from hookpoint.core.errors import WorkdirInUse

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="asks /proc about processes")


def listing(folder):
    """Return every file under a folder with its times, size and inode."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
    return found


def frozen(child):
    """Return whether all threads of a process are stopped."""
    states = [Path(f"/proc/{child.pid}/task/{task}/stat").read_text() for task in os.listdir(f"/proc/{child.pid}/task")]
    return all(state.rpartition(")")[2].split()[0] == "T" for state in states)


@pytest.mark.parametrize("number", range(times(full=20, sample=2)))
def test_a_second_process_raises_and_touches_nothing(number, trial, tally):
    run = trial(Variant(kind=("runner", "loop")[number % 2]))
    first = run.start(slow_from=1, pause=0.005)  # so that it is not over when it gets SIGSTOP
    run.wait_for(number / 25)
    first.kill(signal.SIGSTOP)  # so that only the second process could change anything
    run.wait_until(lambda: frozen(first))
    before, trained = listing(run.workdir), run.trace.read_text()
    second = run.start()
    assert second.wait() == 1
    assert second.raised[0] == WorkdirInUse.__name__
    assert f"process {first.pid}" in second.log
    assert listing(run.workdir) == before
    assert run.trace.read_text() == trained
    first.kill(signal.SIGCONT)
    differences = run.differences(first)
    tally("two starters", starts=2, writers=1, refused=1, bitwise_equal=not differences)
    assert not differences, first.log


@pytest.mark.parametrize("number", range(times(full=20, sample=2)))
def test_only_one_of_two_simultaneous_starts_writes(number, trial, tally):
    run = trial()
    both = [run.start(), run.start()]
    codes = sorted(child.wait() for child in both)
    assert codes in ([0, 1], [0, 0]), both[0].log + both[1].log  # both succeed if the first finished before the second started
    for child in both:
        assert child.ended == 0 or child.raised[0] == WorkdirInUse.__name__, child.log
        assert child.ended != 0 or not run.differences(child), child.log
    assert len(run.trace.read_text().splitlines()) == len(run.whole.steps), "no step was made twice"
    tally("two starters at once", starts=2, writers=1, refused=codes == [0, 1], bitwise_equal=1)


@pytest.mark.parametrize("number", range(times(full=10, sample=1)))
@pytest.mark.parametrize("workers", [0, 2] if FULL else [0])
def test_the_lock_of_a_dead_process_is_taken_over_at_once(workers, number, trial, tally):
    run, step = trial(Variant(workers=workers)), 4 + 2 * number
    first = run.start(slow_from=step, pause=30.0)  # blocks it in the save of a step while its workers wait
    run.wait_until(lambda: any(run.workdir.glob(f"checkpoints/.staging-step-{step:08d}*/*")))
    run.wait_until(lambda: len(children_of(first.pid)) == workers)
    left = children_of(first.pid)
    for worker in left:
        os.kill(worker, signal.SIGSTOP)  # otherwise it would notice the death and end
    try:
        first.kill(alone=True)
        assert all(Path(f"/proc/{worker}").exists() for worker in left)
        second = run.start()
        differences = run.differences(second)
    finally:
        for worker in left:
            os.kill(worker, signal.SIGKILL)
    assert f"process {first.pid}" in second.log
    assert "which has ended. Taking over the folder." in second.log
    tally("taken over from a dead one", runs=1, workers_alive=len(left), bitwise_equal=not differences)
    assert not differences, second.log


def children_of(pid):
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
