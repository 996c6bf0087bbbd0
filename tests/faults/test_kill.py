"""A run killed with kill -9 at any time resumes and ends with the same weights, state and records, bit for bit."""

from __future__ import annotations

import random
import signal
from itertools import count
from time import sleep

import pytest
from harm import SITES, STORAGE
from scale import FULL, times
from subject import STEPS, Variant

RANDOMLY = [
    Variant(),
    Variant(kind="loop"),
    Variant(workers=2),
    Variant(in_background=True),
    Variant(accumulate=2),
    Variant(kind="loop", accumulate=2),
    Variant(kind="loop", workers=2),
    Variant(kind="loop", in_background=True),
    Variant(fp16=True),
    Variant(val_steps=3),
    Variant(kind="loop", val_steps=3),
]
MOST_KILLS = times(full=5, sample=2)

# Every site of every step: in the Runner, in the user's own loop, and with two batches per step. Each step is saved.
STEPWISE = (Variant(save_every=1), Variant(kind="loop", save_every=1), Variant(accumulate=2, save_every=1))
LATE = Variant(in_background=True, save_every=1)
EVERYWHERE = [(variant, site, step) for variant in STEPWISE for step in range(1, STEPS + 1) for site in SITES]
EVERYWHERE += [(LATE, site, step) for step in range(1, STEPS + 1) for site in STORAGE]
SOMEWHERE = [(STEPWISE[number % 5 % 3], SITES[number % len(SITES)], 1 + 7 * number % STEPS) for number in range(len(SITES))]
RUNS = times(full=8, sample=1)

DEFAULTS = (Variant(default_saver=True, save_every=1), Variant(kind="loop", default_saver=True, save_every=1))
RUNS_WITH_DEFAULTS, KILLS_EACH = times(full=40, sample=2), 5  # 200 kills


@pytest.mark.parametrize("number", range(RUNS))
@pytest.mark.parametrize("variant", RANDOMLY if FULL else RANDOMLY[1:3], ids=str)
def test_a_run_killed_at_random_times_ends_with_the_same_results(variant, number, trial, goes_on):
    chance, run, kills = random.Random(f"{variant} {number}"), trial(variant), 0
    for _ in range(MOST_KILLS):
        if not kills or chance.random() < 0.4:
            child = run.start(operation=chance.randint(1, run.whole.changes // 2), after=chance.random() < 0.5)
            child.wait()
        else:
            child = run.start()
            sleep(chance.uniform(0.0, 0.7 * run.whole.seconds))
            child.kill()
        assert child.ended in (0, -signal.SIGKILL), child.log
        assert run.is_sound, child.log
        if child.ended == 0:
            break
        kills += 1
    goes_on(run, child, f"kill -9 at random, {'own loop' if variant.kind == 'loop' else 'Runner'}", kills=kills)
    assert kills > 0


@pytest.mark.parametrize(("variant", "site", "step"), EVERYWHERE if FULL else SOMEWHERE, ids=str)
def test_a_run_killed_at_any_site_of_a_step_ends_with_the_same_results(variant, site, step, trial, goes_on):
    run = trial(variant)
    child = run.start(site=site, step=step)
    ended = child.wait()
    # After the last step there is nothing left to delete, so the run ends normally.
    assert ended == -signal.SIGKILL or (site == "retention" and step > STEPS - 1 and ended == 0), child.log
    goes_on(run, child, f"kill -9 at {site}", kills=ended != 0)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS_WITH_DEFAULTS))
def test_kills_with_the_default_saver_lose_at_most_the_save_in_progress(number, trial, goes_on):
    variant = DEFAULTS[number % len(DEFAULTS)]
    chance, kills, places = random.Random(f"defaults {number}"), 0, count(1)
    run = trial(variant, next(places))
    while kills < KILLS_EACH:
        child = run.start(announced=str(run.folder / "announced"))
        sleep(chance.uniform(0.0, 0.5 * run.whole.seconds))
        child.kill()
        assert run.is_sound, child.log
        assert run.announced is None or run.announced in run.checkpoints, child.log
        if child.ended == -signal.SIGKILL:
            kills += 1
        else:  # it ended before the kill: continue with a new run
            assert child.ended == 0, child.log
            assert run.differences(child) == []
            run = trial(variant, next(places))
    goes_on(run, child, f"kill -9 with the default saver, {'own loop' if variant.kind == 'loop' else 'Runner'}", kills=kills)
