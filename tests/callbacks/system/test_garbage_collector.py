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
    """Have the collector on when a test begins, and as it was when it ends."""
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.enable()
    yield
    assert gc.isenabled()
    assert gc.get_threshold() == thresholds
    if "unfrozen" not in request.fixturenames:
        assert frozen // 2 <= gc.get_freeze_count() <= frozen  # objects that are freed leave it


def is_frozen():
    return gc.get_freeze_count() >= garbage_collector.FROZEN_BY_PYTHON


@pytest.fixture
def unfrozen():
    """Have nothing frozen when a test begins; when it ends, have the suite's objects frozen again."""
    gc.unfreeze()
    yield
    assert not is_frozen()
    gc.freeze()


@pytest.fixture
def collected(monkeypatch):
    """What was collected, generation by generation."""
    calls = []
    monkeypatch.setattr(garbage_collector.gc, "collect", lambda generation=2: calls.append(generation))
    return calls


class Circle:
    def __init__(self):
        self.me = self


def test_it_is_off_while_the_run_goes_on(train_public):
    was = []
    train_public([GarbageCollector()], epochs=2, batches=5, step=lambda run, batch: was.append(gc.isenabled()))
    assert was == [False] * 10


def test_circles_wait_for_the_schedule(train_public):
    alive = []

    def look(run, batch):
        if run.step == 0:
            alive.append(weakref.ref(Circle()))
        alive.append(alive[0]() is not None)

    train_public([GarbageCollector(every=4, generation=0)], batches=7, step=look)
    assert alive[1:] == [True, True, True, True, False, False, False]


def test_it_collects_by_steps_and_all_at_the_end_of_epochs(train_public, collected):
    train_public([GarbageCollector(every=3)], epochs=2, batches=5)
    assert collected == [2, 1, 2, 1, 1, 2]  # at the begin; steps 3; 5 is an epoch's end; 6, 9; 10


def test_another_schedule(train_public, collected):
    train_public([GarbageCollector(generation=0).when(Every(steps=5))], batches=5)
    assert collected == [2, 0, 2]


def test_its_schedule_goes_on_after_a_resume(train_public, cut_off, collected, tmp_path):
    savers = [ModelSaver().when(Every(steps=2))]
    with pytest.raises(cut_off):
        train_public([GarbageCollector(every=3), *savers], epochs=2, batches=5, workdir=tmp_path, cut_at=5)
    collected.clear()
    train_public([GarbageCollector(every=3), *savers], epochs=2, batches=5, workdir=tmp_path)
    assert collected == [2, 2, 1, 1, 2]


@pytest.mark.parametrize("freeze", [False, True])
def test_after_an_exception_all_is_as_it_was(train_public, freeze, unfrozen):
    def look(run, batch):
        assert not gc.isenabled()
        assert is_frozen() is freeze
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        train_public([GarbageCollector(freeze=freeze)], epochs=2, batches=5, step=look)
    assert gc.isenabled()
    assert not is_frozen()


def test_what_was_off_stays_off(train_public):
    gc.disable()
    train_public([GarbageCollector()], epochs=2, batches=5)
    assert not gc.isenabled()
    gc.enable()


def test_what_someone_else_froze_stays_frozen(train_public, unfrozen):
    gc.freeze()
    frozen = gc.get_freeze_count()
    train_public([GarbageCollector(freeze=True)], epochs=2, batches=5)
    assert gc.get_freeze_count() > frozen // 2  # objects that are freed leave it, and no more came
    assert gc.get_freeze_count() <= frozen
    gc.unfreeze()


def test_two_of_them_and_a_run_inside_of_a_run(train_public, unfrozen):
    was = []

    def look(run, batch):
        train_public([GarbageCollector(freeze=True)], batches=1)
        was.append(gc.isenabled())

    train_public([GarbageCollector(), GarbageCollector()], batches=2, step=look)
    assert was == [False, False]
    assert gc.isenabled()


def test_an_instance_can_be_used_again(train_public):
    callback = GarbageCollector()
    for _ in range(2):
        train_public(
            [callback], epochs=2, batches=5, step=lambda run, batch: None if not gc.isenabled() else pytest.fail("it is on")
        )
        assert gc.isenabled()


def is_on(queue):
    queue.put((gc.isenabled(), is_frozen()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_collects_by_itself(train_public, unfrozen):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def look(run, batch):
        process = context.Process(target=is_on, args=[queue])
        process.start()
        process.join()

    train_public([GarbageCollector(freeze=True)], batches=1, step=look)
    assert queue.get() == (True, False)


@pytest.mark.parametrize("bad", [{"every": 0}, {"every": 2.5}, {"generation": 3}, {"generation": True}])
def test_bad_arguments_are_refused(bad):
    with pytest.raises(ValueError, match=r"GarbageCollector: .* must be an integer|generation must be 0, 1 or 2, got"):
        GarbageCollector(**bad)
