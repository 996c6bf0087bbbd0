from __future__ import annotations

import pytest

from hookpoint import Callback
from hookpoint.core.callback.idle_callback import IdleCallback
from hookpoint.core.loop.loop import Loop
from hookpoint.core.run.run import loop_of


class Sleeper(IdleCallback):
    def __init__(self):
        super().__init__()
        self.is_awake, self.seen = False, []

    def is_idle_at(self, point):
        return not self.is_awake

    def wake_up(self, run):
        self.is_awake = True
        loop_of(run).refresh()

    def on_train_iter_begin(self, run):
        self.seen.append(("begin", run.batch))

    def on_iter_end(self, run):
        self.seen.append(("end", run.batch))


class Other(Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_iter_end(self, run):
        self.seen.append(run.batch)


def test_an_idle_callback_adds_no_code_to_the_loop():
    with Loop([Sleeper()]) as run:
        for _ in run.batches(range(2)):
            pass
        assert "pass_.end" not in run.hooks.explain(step=True)


def test_an_idle_callback_is_called_from_the_iteration_in_which_it_wakes_up():
    sleeper, other, batches = Sleeper(), Other(), []
    with Loop([sleeper, other]) as run:
        for batch in run.batches(range(4)):
            batches.append(batch)
            if batch == 1:
                sleeper.wake_up(run)
    assert batches == other.seen == [0, 1, 2, 3]
    assert sleeper.seen == [("end", 1), ("begin", 2), ("end", 2), ("begin", 3), ("end", 3)]
    assert (run.iteration, run.step) == (4, 4)


@pytest.mark.parametrize("at", [0, 3])
def test_a_callback_that_wakes_up_at_an_iteration_end_starts_at_the_next_end(at):
    sleeper = Sleeper()

    class Waker(Callback):
        def on_train_iter_end(self, run):
            if run.batch == at:
                sleeper.wake_up(run)

    with Loop([Waker(), sleeper]) as run:
        assert list(run.batches(range(4))) == [0, 1, 2, 3]
    assert sleeper.seen == [(moment, batch) for batch in range(at + 1, 4) for moment in ("begin", "end")][1:]


def test_an_idle_callback_can_wake_up_in_a_nested_pass():
    sleeper = Sleeper()
    with Loop([sleeper]) as run:
        for batch in run.batches(range(3)):
            for _ in run.batches("ab", mode="val") if batch == 1 else ():
                if not sleeper.is_awake:
                    sleeper.wake_up(run)
    ends = [batch for moment, batch in sleeper.seen if moment == "end"]
    assert ends == ["a", "b", 1, 2]


def test_a_pass_that_is_left_and_reentered_continues():
    sleeper, batches = Sleeper(), []
    with Loop([sleeper]) as run:
        iterator = run.batches(range(5))
        for batch in iterator:
            batches.append(batch)
            if batch == 1:
                sleeper.wake_up(run)
                break
        batches += list(iterator)
    assert batches == [0, 1, 2, 3, 4]
    assert [batch for moment, batch in sleeper.seen if moment == "end"] == [1, 2, 3, 4]
