from __future__ import annotations

import logging
from threading import Event

from hookpoint.callbacks._shared.ticker import Ticker


def test_a_ticker_ticks_on_its_own_thread_until_it_is_stopped():
    ticks, third = [], Event()

    def tick():
        ticks.append(1)
        if len(ticks) == 3:
            third.set()

    ticker = Ticker("Mine", 0.001, tick)
    assert third.wait(60)
    ticker.stop(timeout_seconds=60)
    assert not ticker._thread.is_alive()


def test_a_ticker_that_fails_warns_once_and_ends(caplog):
    def tick():
        raise OSError("the terminal is gone")

    with caplog.at_level(logging.WARNING):
        ticker = Ticker("Mine", 0.001, tick)
        ticker._thread.join(60)
        ticker.stop(timeout_seconds=60)
    assert caplog.messages == ["Mine failed: OSError: the terminal is gone; the run continues without it"]
