"""Two processes in one workdir: one writes, the other leaves without a trace; and who finds a dead one takes over."""

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
    """Return every file under a folder with its times, size and number."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
    return found


def frozen(child):
    """Say whether a process has stopped, as all of its threads have."""
    states = [Path(f"/proc/{child.pid}/task/{task}/stat").read_text() for task in os.listdir(f"/proc/{child.pid}/task")]
    return all(state.rpartition(")")[2].split()[0] == "T" for state in states)


@pytest.mark.parametrize("number", range(times(full=20, sample=2)))
def test_the_second_one_touches_nothing(number, trial, tally):
    run = trial(Variant(kind=("runner", "loop")[number % 2]))
    first = run.start(slow_from=1, pause=0.005)  # so that it is not over when it is stopped
    run.wait_for(number / 25)
    first.kill(signal.SIGSTOP)  # so that nothing changes but what the second one does
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
def test_of_two_that_start_at_once_one_writes(number, trial, tally):
    run = trial()
    both = [run.start(), run.start()]
    codes = sorted(child.wait() for child in both)
    assert codes in ([0, 1], [0, 0]), both[0].log + both[1].log  # the second is fine when the first was done before it came
    for child in both:
        assert child.ended == 0 or child.raised[0] == WorkdirInUse.__name__, child.log
        assert child.ended != 0 or not run.differences(child), child.log
    assert len(run.trace.read_text().splitlines()) == len(run.whole.steps), "no step was made twice"
    tally("two starters at once", starts=2, writers=1, refused=codes == [0, 1], bitwise_equal=1)


@pytest.mark.parametrize("number", range(times(full=10, sample=1)))
@pytest.mark.parametrize("workers", [0, 2] if FULL else [0])
def test_who_finds_a_dead_one_takes_over_at_once(workers, number, trial, tally):
    run, step = trial(Variant(workers=workers)), 4 + 2 * number
    first = run.start(slow_from=step, pause=30.0)  # which holds it in the save of a step, its workers waiting
    run.wait_until(lambda: any(run.workdir.glob(f"checkpoints/.staging-step-{step:08d}*/*")))
    run.wait_until(lambda: len(children_of(first.pid)) == workers)
    left = children_of(first.pid)
    for worker in left:
        os.kill(worker, signal.SIGSTOP)  # it would notice, and end
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
