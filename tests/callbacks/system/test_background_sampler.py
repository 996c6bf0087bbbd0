from __future__ import annotations

import logging
import threading

import pytest

from hookpoint.callbacks.system._background_sampler import Sampler

SOON = 5.0  # seconds; a working test waits much less


class Source:
    """A source of samples: each reading waits until the test releases it."""

    def __init__(self):
        self.asked, self.go, self.taken = threading.Event(), threading.Semaphore(0), []
        self.added = threading.Event()
        self.error = None

    def read(self):
        self.asked.set()
        assert self.go.acquire(timeout=SOON)
        if self.error is not None:
            raise self.error
        return {0: 50.0}

    def add(self, sample):
        self.taken.append(dict(sample))
        self.added.set()

    def wait_until_asked(self):
        assert self.asked.wait(SOON)
        self.asked.clear()


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def sampler(source):
    sampler = Sampler("Mine", source.read, source.add, seconds=0.001)
    yield sampler
    source.go.release(1000)
    sampler.close()
    assert not sampler._thread.is_alive()


def test_samples_are_taken_while_the_sampler_is_on(sampler, source):
    assert not source.asked.wait(0.05)
    sampler.turn(on=True)
    source.wait_until_asked()
    source.go.release()
    assert source.added.wait(SOON)
    assert source.taken == [{0: 50.0}]


def test_a_sample_in_progress_is_dropped_when_the_sampler_is_turned_off(sampler, source):
    sampler.turn(on=True)
    source.wait_until_asked()
    sampler.turn(on=False)
    source.go.release()
    sampler.turn(on=True)
    source.wait_until_asked()
    assert source.taken == []
    source.go.release()
    assert source.added.wait(SOON)
    assert source.taken == [{0: 50.0}]


def test_turning_the_sampler_on_twice_changes_nothing(sampler, source):
    sampler.turn(on=True)
    source.wait_until_asked()
    sampler.turn(on=True)
    source.go.release()
    assert source.added.wait(SOON)


def test_no_sample_is_taken_before_its_time(source):
    sampler = Sampler("Mine", source.read, source.add, seconds=3600)
    sampler.turn(on=True)
    sampler.turn(on=False)
    sampler.turn(on=True)
    assert not source.asked.wait(0.05)
    sampler.close()
    assert not sampler._thread.is_alive()


def test_a_failure_is_reported_once_and_ends_the_sampler(sampler, source, caplog):
    source.error = OSError("the driver is gone")
    with caplog.at_level(logging.WARNING, logger="hookpoint"):
        sampler.turn(on=True)
        source.go.release()
        sampler._thread.join(SOON)
    assert caplog.messages == ["Mine failed: OSError: the driver is gone; the run continues without it"]
    assert source.taken == []
