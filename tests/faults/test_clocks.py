"""Checkpoints are ordered by step, whatever the clock says."""

from __future__ import annotations

import os
import random
import signal

import pytest
from scale import times
from subject import Variant

LAST = ["step-00000030", "step-00000032", "step-00000032-2"]  # the two newest of ModelSaver, and the best of MinSaver


@pytest.mark.parametrize("number", range(times(full=10, sample=1)))
def test_a_jumping_clock_does_not_change_the_results(number, trial, tally):
    run = trial(Variant(kind=("runner", "loop")[number % 2]))
    assert run.start("surroundings.with_jumping_clock", seed=number, step=9 + 2 * number).wait() == -signal.SIGKILL
    newest = run.newest()["clocks"]["step"]
    assert newest == 8 + 2 * number
    assert [name for name in run.checkpoints if not name.endswith("-2")] == [f"step-{newest - 2:08d}", f"step-{newest:08d}"]
    last = run.start("surroundings.with_jumping_clock", seed=number + 1)
    differences = run.differences(last)
    assert run.checkpoints == LAST
    tally("clock jumps", runs=1, bitwise_equal=not differences)
    assert not differences, last.log


@pytest.mark.parametrize("number", range(times(full=10, sample=1)))
def test_checkpoints_are_ordered_by_step_and_not_by_file_time(number, trial, tally):
    chance, run = random.Random(number), trial()
    assert run.start(site="on_iter_begin", step=13).wait() == -signal.SIGKILL
    assert run.checkpoints == ["step-00000008-2", "step-00000010", "step-00000012"]
    for name, days in (("step-00000010", chance.randint(-9, 9)), ("step-00000012", chance.randint(-99, -10))):
        folder = run.workdir / "checkpoints" / name
        for path in (*folder.iterdir(), folder):
            then = path.stat().st_mtime + days * 86400
            os.utime(path, (then, then))
    assert run.newest()["clocks"]["step"] == 12
    last = run.start()
    differences = run.differences(last)
    assert f"{run.workdir}/checkpoints/step-00000012" in last.log
    assert run.checkpoints == LAST
    tally("reversed times of files", runs=1, bitwise_equal=not differences)
    assert not differences, last.log
