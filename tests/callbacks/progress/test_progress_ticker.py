from __future__ import annotations

import logging
from threading import Event

from hookpoint.callbacks.progress._progress_ticker import Meter, Ticker


def test_a_meter_knows_a_rate_once_something_was_done():
    meter = Meter()
    assert meter.add("a", 0, now=10.0) is None
    assert meter.add("a", 0, now=11.0) is None
    assert meter.add("a", 20, now=12.0) == 10.0


def test_a_rate_stands_while_nothing_moves():
    meter = Meter()
    meter.add("a", 0, now=0.0)
    meter.add("a", 20, now=2.0)
    assert meter.add("a", 20, now=100.0) == 10.0


def test_a_rate_is_that_of_the_last_samples():
    meter = Meter()
    for second in range(100):
        meter.add("a", second, now=float(second))
    for second in range(100, 200):
        rate = meter.add("a", 99 + (second - 99) * 5, now=float(second))
    assert rate == 5.0


def test_another_pass_starts_afresh():
    meter = Meter()
    meter.add("a", 0, now=0.0)
    meter.add("a", 20, now=1.0)
    assert meter.add("b", 25, now=2.0) is None


def test_a_pass_begun_anew_starts_afresh():
    meter = Meter()
    meter.add("a", 0, now=0.0)
    meter.add("a", 20, now=1.0)
    assert meter.add("a", 0, now=2.0) is None
    assert meter.add("a", 3, now=3.0) == 3.0


def test_a_ticker_ticks_on_a_thread_of_its_own_until_it_is_stopped():
    ticks, third = [], Event()

    def tick():
        ticks.append(1)
        if len(ticks) == 3:
            third.set()

    ticker = Ticker(0.001, tick)
    assert third.wait(60)
    ticker.stop()
    assert not ticker._thread.is_alive()


def test_a_ticker_that_fails_says_so_once_and_ends(caplog):
    def tick():
        raise OSError("the terminal is gone")

    with caplog.at_level(logging.WARNING):
        ticker = Ticker(0.001, tick)
        ticker._thread.join(60)
        ticker.stop()
    assert caplog.messages == ["The progress bar failed: OSError: the terminal is gone; the run continues without it"]
