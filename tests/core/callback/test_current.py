from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context

import hookpoint
from hookpoint import current_run
from hookpoint.core.loop.loop import Loop


def test_without_a_run_logging_does_nothing():
    assert current_run() is None
    hookpoint.log("loss", "not even checked")


def test_inside_a_run_a_model_logs_as_the_run_does():
    def forward(x):
        hookpoint.log("entropy", x)

    with Loop() as run:
        assert current_run() is run
        for batch in run.batches([1, 3], mode="val"):
            forward(batch)
    assert dict(run.metrics) == {"val_entropy": 2.0}
    assert current_run() is None


def test_a_run_inside_a_run_is_the_current_one_until_it_is_left():
    with Loop(name="outer") as outer:
        with Loop(name="inner") as inner:
            hookpoint.log("x", 1)
        hookpoint.log("x", 2)
        assert current_run() is outer
    assert (inner.metrics["x"], outer.metrics["x"]) == (1.0, 2.0)


def test_a_run_that_fails_is_no_longer_current():
    try:
        with Loop():
            raise ValueError
    except ValueError:
        pass
    assert current_run() is None


def test_callbacks_are_in_the_run_up_to_its_last_point():
    seen = []
    look = hookpoint.LambdaCallback(on_setup=lambda: seen.append(current_run()), on_run_end=lambda: seen.append(current_run()))
    with Loop([look]) as run:
        pass
    assert seen == [run, run]


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_thread_of_its_own_is_in_no_run_unless_it_is_given_the_context():
    with Loop() as run:
        in_thread(lambda: hookpoint.log("x", 1))
        assert "x" not in run.metrics
        context = copy_context()
        in_thread(lambda: context.run(hookpoint.log, "x", 2))
    assert run.metrics["x"] == 2.0


def test_two_threads_have_a_run_each():
    seen, both_run = {}, threading.Barrier(2)

    def work(name):
        with Loop(name=name) as run:
            both_run.wait(10)
            hookpoint.log("x", len(name))
            seen[name] = (current_run() is run, run.metrics["x"])

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "bb")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen == {"a": (True, 1.0), "bb": (True, 2.0)}


def test_two_tasks_have_a_run_each():
    async def work(name):
        with Loop(name=name) as run:
            await asyncio.sleep(0)
            hookpoint.log("x", len(name))
            return current_run() is run, run.metrics["x"]

    async def both():
        return await asyncio.gather(work("a"), work("bb"))

    assert asyncio.run(both()) == [(True, 1.0), (True, 2.0)]
