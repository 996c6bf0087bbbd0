"""`Background` waits for the thread that writes checkpoints, even if a signal handler raises while the thread starts."""

import sys
import threading
from contextlib import contextmanager

import pytest

from hookpoint.core.checkpoint.store import Saved
from hookpoint.storage.checkpoint.background import Background


class Interrupted(Exception):
    """Raised by a signal handler, as by torch's when a DataLoader worker dies."""


@contextmanager
def interrupted_as_a_thread_starts():
    def profile(frame, event, argument):
        if event == "return" and frame.f_code is threading.Thread.start.__code__:
            raise Interrupted

    known = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(known)


def test_wait_waits_for_a_save_whose_start_was_interrupted():
    background, may_end = Background(), threading.Event()

    def save():
        may_end.wait()
        return Saved("step-1", 1, ["end"])

    with pytest.raises(Interrupted), interrupted_as_a_thread_starts():
        background.start(save)
    assert background.collect() == []
    may_end.set()
    background.wait()
    assert [saved.step for saved in background.collect()] == [1]


def test_wait_returns_if_the_thread_could_not_start(monkeypatch):
    def refuse(*args, **options):
        raise RuntimeError("can't start new thread")

    background = Background()
    starts = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="can't start new thread"):
        patch.setattr(threading, starts, refuse)
        background.start(lambda: Saved("step-1", 1, []))
    background.wait()
    background.start(lambda: Saved("step-2", 2, []))
    background.wait()
    assert [saved.step for saved in background.collect()] == [2]
