from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hookpoint import Loop as PublicLoop
from hookpoint.core.errors import BadLoop, DataTimeout
from hookpoint.core.loop.loop import Loop


class Reports(logging.Handler):
    """Keep the reports, and release `arrived` at each of them."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.seen, self.arrived = [], threading.Semaphore(0)

    def emit(self, record):
        if "has waited" in record.getMessage():
            self.seen.append(record.getMessage())
            self.arrived.release()


@pytest.fixture
def reports():
    found, logger = Reports(), logging.getLogger("hookpoint")
    logger.addHandler(found)
    yield found
    logger.removeHandler(found)


def watches():
    return [one for one in threading.enumerate() if "hang watch" in one.name]


def slow_data(reports, number=1):
    """Yield two batches, the second after `number` reports."""
    yield "a"
    for _ in range(number):
        assert reports.arrived.acquire(timeout=250)
    yield "b"


def test_a_wait_for_data_is_reported_with_the_place_and_the_stack(reports):
    with Loop(name="lenet", hang_report_seconds=0.05, data_timeout_seconds=600) as run:
        for _ in run.epochs(1):
            assert list(run.batches(slow_data(reports))) == ["a", "b"]
    first = reports.seen[0].splitlines()
    assert first[0].startswith("lenet has waited 0 s for data, at batch 1 of epoch 1.")
    assert "slow_data" in reports.seen[0]
    assert __file__ in reports.seen[0]


def test_reports_come_at_growing_intervals(reports):
    began = time.monotonic()
    with Loop(hang_report_seconds=0.05, data_timeout_seconds=600) as run:
        list(run.batches(slow_data(reports, number=4)))
    assert time.monotonic() - began >= 0.05 * 8  # 0.05, 0.1, 0.2 and 0.4 s after the wait began
    assert len(reports.seen) == 4


def test_without_reports_and_timeout_no_watch_runs(reports):
    with Loop(name="unwatched", hang_report_seconds=None, data_timeout_seconds=None) as run:
        for _ in run.batches("ab"):
            assert not [one for one in watches() if "unwatched" in one.name]


def test_the_watch_ends_with_the_run(reports):
    with Loop(name="watched once", data_timeout_seconds=600) as run:
        for _ in run.batches("ab"):
            (watch,) = (one for one in watches() if "watched once" in one.name)
    watch.join(timeout=250)
    assert not watch.is_alive()


def test_a_timeout_ends_a_wait_for_data():
    never = threading.Event()

    def data():
        yield "a"
        never.wait()

    with (
        pytest.raises(DataTimeout, match=r"(?s)no data for 0 s, at batch 1 of epoch 1\..*than data_timeout_seconds=0.05"),
        Loop(data_timeout_seconds=0.05) as run,
    ):
        list(run.batches(data()))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_timeout_in_validation_names_the_validation_batch():
    def data():
        time.sleep(600)
        yield "a"

    with (
        pytest.raises(DataTimeout, match=r"at validation batch 0 of epoch 1\."),
        Loop(data_timeout_seconds=0.05, hang_report_seconds=None) as run,
    ):
        for _ in run.epochs(1):
            list(run.batches("ab"))
            list(run.batches(data(), mode="val"))


def test_the_loop_body_can_take_longer_than_the_data_timeout():
    with Loop(data_timeout_seconds=0.3) as run:
        for _ in run.batches("ab"):
            time.sleep(0.6)
    assert run.iteration == 2


def test_a_timeout_needs_the_main_thread():
    raised = []

    def train():
        try:
            with Loop(data_timeout_seconds=1) as run:
                list(run.batches("ab"))
        except BadLoop as error:
            raised.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert "run       the loop in the main thread" in str(raised[0])


def test_a_timeout_needs_a_signal_that_is_not_ignored(tmp_path):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        with pytest.raises(BadLoop, match="without ignoring SIGINT"), PublicLoop(workdir=tmp_path, data_timeout_seconds=1):
            pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("name", ["hang_report_seconds", "data_timeout_seconds"])
@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_seconds_that_are_not_positive_raise(name, seconds):
    with pytest.raises(BadLoop, match=f"{name} must be a number > 0 or None"):
        Loop(**{name: seconds})


def test_a_signal_still_stops_a_run_with_a_timeout(tmp_path):
    program = """
import os, signal
from hookpoint.core.loop.loop import Loop
with Loop(data_timeout_seconds=600) as run:
    for batch in run.batches(range(100)):
        os.kill(os.getpid(), signal.SIGTERM)
        print(batch, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ), check=False)
    assert (done.stdout.split(), done.returncode) == (["0"], 128 + signal.SIGTERM)
