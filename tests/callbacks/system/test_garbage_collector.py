from __future__ import annotations

import gc
import multiprocessing
import os
import weakref

import pytest

from hookpoint import Every
from hookpoint.callbacks import GarbageCollector, ModelSaver
from hookpoint.callbacks.system import garbage_collector


@pytest.fixture(autouse=True)
def as_it_was(request):
    """Turn the collector on before each test, and check that the test restores it."""
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.enable()
    yield
    assert gc.isenabled()
    assert gc.get_threshold() == thresholds
    if "unfrozen" not in request.fixturenames:
        assert frozen // 2 <= gc.get_freeze_count() <= frozen  # freed objects reduce the count


def is_frozen():
    return gc.get_freeze_count() >= garbage_collector.FROZEN_BY_PYTHON


@pytest.fixture
def unfrozen():
    """Unfreeze all objects before a test, and freeze those of the suite again after it."""
    gc.unfreeze()
    yield
    assert not is_frozen()
    gc.freeze()


@pytest.fixture
def collected(monkeypatch):
    """The generation of each collection."""
    calls = []
    monkeypatch.setattr(garbage_collector.gc, "collect", lambda generation=2: calls.append(generation))
    return calls


class Circle:
    def __init__(self):
        self.me = self


def test_the_collector_is_off_during_a_run(train_public):
    was = []
    train_public([GarbageCollector()], epochs=2, batches=5, step=lambda run, batch: was.append(gc.isenabled()))
    assert was == [False] * 10


def test_cycles_are_collected_when_the_schedule_is_due(train_public):
    alive = []

    def look(run, batch):
        if run.step == 0:
            alive.append(weakref.ref(Circle()))
        alive.append(alive[0]() is not None)

    train_public([GarbageCollector(every=4, generation=0)], batches=7, step=look)
    assert alive[1:] == [True, True, True, True, False, False, False]


def test_a_generation_is_collected_every_n_steps_and_all_at_epoch_ends(train_public, collected):
    train_public([GarbageCollector(every=3)], epochs=2, batches=5)
    assert collected == [
        2,
        1,
        2,
        1,
        1,
        2,
    ]  # at the beginning; step 3; the epoch end at step 5; steps 6 and 9; the epoch end at step 10


def test_a_schedule_replaces_the_steps(train_public, collected):
    train_public([GarbageCollector(generation=0).when(Every(steps=5))], batches=5)
    assert collected == [2, 0, 2]


def test_the_schedule_continues_after_a_resume(train_public, cut_off, collected, tmp_path):
    savers = [ModelSaver().when(Every(steps=2))]
    with pytest.raises(cut_off):
        train_public([GarbageCollector(every=3), *savers], epochs=2, batches=5, workdir=tmp_path, cut_at=5)
    collected.clear()
    train_public([GarbageCollector(every=3), *savers], epochs=2, batches=5, workdir=tmp_path)
    assert collected == [2, 2, 1, 1, 2]


@pytest.mark.parametrize("freeze", [False, True])
def test_the_collector_is_restored_after_an_exception(train_public, freeze, unfrozen):
    def look(run, batch):
        assert not gc.isenabled()
        assert is_frozen() is freeze
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        train_public([GarbageCollector(freeze=freeze)], epochs=2, batches=5, step=look)
    assert gc.isenabled()
    assert not is_frozen()


def test_a_collector_that_was_off_stays_off(train_public):
    gc.disable()
    train_public([GarbageCollector()], epochs=2, batches=5)
    assert not gc.isenabled()
    gc.enable()


def test_objects_frozen_before_the_run_stay_frozen(train_public, unfrozen):
    gc.freeze()
    frozen = gc.get_freeze_count()
    train_public([GarbageCollector(freeze=True)], epochs=2, batches=5)
    assert gc.get_freeze_count() > frozen // 2  # freed objects reduce the count, and no others were frozen
    assert gc.get_freeze_count() <= frozen
    gc.unfreeze()


def test_several_callbacks_and_nested_runs_restore_the_collector(train_public, unfrozen):
    was = []

    def look(run, batch):
        train_public([GarbageCollector(freeze=True)], batches=1)
        was.append(gc.isenabled())

    train_public([GarbageCollector(), GarbageCollector()], batches=2, step=look)
    assert was == [False, False]
    assert gc.isenabled()


def test_an_instance_can_be_reused(train_public):
    callback = GarbageCollector()
    for _ in range(2):
        train_public(
            [callback], epochs=2, batches=5, step=lambda run, batch: None if not gc.isenabled() else pytest.fail("it is on")
        )
        assert gc.isenabled()


def is_on(queue):
    queue.put((gc.isenabled(), is_frozen()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_collects_on_its_own(train_public, unfrozen):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def look(run, batch):
        process = context.Process(target=is_on, args=[queue])
        process.start()
        process.join()

    train_public([GarbageCollector(freeze=True)], batches=1, step=look)
    assert queue.get() == (True, False)


@pytest.mark.parametrize("bad", [{"every": 0}, {"every": 2.5}, {"generation": 3}, {"generation": True}])
def test_invalid_arguments_raise(bad):
    with pytest.raises(ValueError, match=r"GarbageCollector: .* must be an integer|generation must be 0, 1 or 2, got"):
        GarbageCollector(**bad)
