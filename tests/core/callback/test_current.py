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


def test_hookpoint_log_logs_to_the_current_run():
    def forward(x):
        hookpoint.log("entropy", x)

    with Loop() as run:
        assert current_run() is run
        for batch in run.batches([1, 3], mode="val"):
            forward(batch)
    assert dict(run.metrics) == {"val_entropy": 2.0}
    assert current_run() is None


def test_a_nested_run_is_current_until_it_ends():
    with Loop(name="outer") as outer:
        with Loop(name="inner") as inner:
            hookpoint.log("x", 1)
        hookpoint.log("x", 2)
        assert current_run() is outer
    assert (inner.metrics["x"], outer.metrics["x"]) == (1.0, 2.0)


def test_a_failed_run_is_no_longer_current():
    try:
        with Loop():
            raise ValueError
    except ValueError:
        pass
    assert current_run() is None


def test_the_run_is_current_from_on_setup_to_on_run_end():
    seen = []
    look = hookpoint.LambdaCallback(on_setup=lambda: seen.append(current_run()), on_run_end=lambda: seen.append(current_run()))
    with Loop([look]) as run:
        pass
    assert seen == [run, run]


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_new_thread_has_no_run_unless_it_gets_the_context():
    with Loop() as run:
        in_thread(lambda: hookpoint.log("x", 1))
        assert "x" not in run.metrics
        context = copy_context()
        in_thread(lambda: context.run(hookpoint.log, "x", 2))
    assert run.metrics["x"] == 2.0


def test_each_thread_has_its_own_run():
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


def test_each_task_has_its_own_run():
    async def work(name):
        with Loop(name=name) as run:
            await asyncio.sleep(0)
            hookpoint.log("x", len(name))
            return current_run() is run, run.metrics["x"]

    async def both():
        return await asyncio.gather(work("a"), work("bb"))

    assert asyncio.run(both()) == [(True, 1.0), (True, 2.0)]
