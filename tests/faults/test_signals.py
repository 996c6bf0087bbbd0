"""On SIGTERM, Ctrl-C and SIGUSR1 at any time, the run saves, then ends or continues, and loses nothing."""

from __future__ import annotations

import random
import signal
from time import sleep

import pytest
from scale import FULL, times
from subject import Variant
from trial import steps_of

VARIANTS = [
    Variant(),
    Variant(kind="loop"),
    Variant(in_background=True),
    Variant(accumulate=2),
    Variant(kind="loop", accumulate=2),
]
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
NOTICES = {signal.SIGTERM: "SIGTERM: stopping", signal.SIGINT: "Ctrl-C: stopping"}


@pytest.mark.parametrize("number", range(times(full=27, sample=1)))
@pytest.mark.parametrize("variant", VARIANTS if FULL else VARIANTS[:3], ids=str)
def test_a_signal_saves_the_current_step_and_ends_the_run(variant, number, trial, goes_on, events):
    chance, run = random.Random(f"{variant} {number}"), trial(variant)
    sent = signal.SIGINT if number % 4 == 3 else signal.SIGTERM
    child = run.start()
    run.wait_for(chance.random())
    sleep(chance.uniform(0.0, 0.03))
    child.kill(sent)
    ended = child.wait()
    trained = max(iteration for iteration, _ in steps_of(run.trace)) + 1
    assert run.newest()["clocks"]["iteration"] == trained, child.log
    if trained < len(run.whole.steps):
        assert ended == CODES[sent], child.log
        assert [event["received"] for event in events(run.workdir, "signal")] == [sent.name]
    else:  # the run was over or ending, perhaps without its signal handlers
        assert ended in (CODES[sent], 0, -sent), child.log
    goes_on(run, child, f"{sent.name} at random", signals=1, saved_at_its_step=1)


@pytest.mark.parametrize("number", range(times(full=25, sample=1)))
@pytest.mark.parametrize("sent", CODES, ids=lambda sent: sent.name)
def test_the_second_signal_does_not_wait_for_a_slow_disk(sent, number, trial, goes_on):
    chance, run = random.Random(f"{sent} {number}"), trial()
    child = run.start(slow_from=8, pause=3600.0)
    run.wait_until(lambda: "step-00000006" in run.checkpoints)
    run.wait_until(lambda: any(run.workdir.glob("checkpoints/.staging-step-00000008*/*")))
    child.kill(sent)
    run.wait_until(lambda: NOTICES[sent] in child.log)  # the kernel merges two equal signals if the first is still pending
    sleep(chance.uniform(0.01, 0.5))
    child.kill(sent)
    assert child.wait() == CODES[sent], child.log  # long before the disk finishes one file
    assert run.newest()["clocks"]["step"] == 6
    goes_on(run, child, f"{sent.name} twice, in a save", signals=2)


@pytest.mark.parametrize("number", range(times(full=25, sample=1)))
@pytest.mark.parametrize("in_background", [False, True], ids=["waits", "background"])
def test_two_signals_at_random_leave_a_good_checkpoint(in_background, number, trial, goes_on):
    chance, run = random.Random(f"two {in_background} {number}"), trial(Variant(in_background=in_background))
    child = run.start()
    run.wait_until(lambda: run.checkpoints)
    run.wait_for(chance.random())
    child.kill(signal.SIGTERM)
    sleep(chance.uniform(0.01, 0.5))
    child.kill(signal.SIGTERM)
    assert child.wait() in (143, 0, -signal.SIGTERM), child.log
    assert run.newest() is not None
    goes_on(run, child, "SIGTERM twice", signals=2)


@pytest.mark.parametrize("number", range(times(full=10, sample=1)))
@pytest.mark.parametrize("sent", CODES, ids=lambda sent: sent.name)
def test_a_background_save_finishes_before_the_run_ends(sent, number, trial, goes_on):
    chance, run = random.Random(f"background {sent} {number}"), trial(Variant(in_background=True))
    child = run.start(slow_from=chance.randint(4, 20), pause=0.02)
    run.wait_until(lambda: len(run.checkpoints) > 1)
    run.wait_until(run.is_saving)
    child.kill(sent)
    assert child.wait() == CODES[sent], child.log
    trained = max(iteration for iteration, _ in steps_of(run.trace)) + 1
    assert run.newest()["clocks"]["iteration"] == trained, child.log
    goes_on(run, child, f"{sent.name} during a background save", signals=1)


@pytest.mark.parametrize("number", range(times(full=10, sample=1)))
@pytest.mark.parametrize("variant", VARIANTS[:3] if FULL else VARIANTS[:1], ids=str)
def test_sigusr1_saves_and_the_run_continues(variant, number, trial, events, tally):
    chance, run = random.Random(f"usr1 {variant} {number}"), trial(variant)
    child = run.start(slow_from=1, pause=0.005)  # so that the run is not over when the signal arrives
    run.wait_for(chance.uniform(0.0, 0.7))
    sleep(chance.uniform(0.0, 0.02))
    child.kill(signal.SIGUSR1)
    assert child.wait() == 0, child.log
    manual = [event for event in events(run.workdir, "save") if "manual" in event["tags"]]
    assert [event["step"] for event in manual] != []
    assert manual[0]["path"].split("/")[-1] in run.checkpoints, "nobody deletes what a person has asked for"
    differences = run.differences(child)
    tally("SIGUSR1", signals=1, runs=1, bitwise_equal=not differences)
    assert not differences, child.log
