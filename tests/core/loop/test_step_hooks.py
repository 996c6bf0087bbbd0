from __future__ import annotations

import pytest

from hookpoint import Callback, Every, LambdaCallback
from hookpoint.core.loop.loop import Loop


class Handle:
    def __init__(self, hooks, hook):
        self.hooks, self.hook = hooks, hook

    def remove(self):
        self.hooks.remove(self.hook)


class Optimizer:
    """An optimizer with step hooks like those of torch."""

    def __init__(self):
        self.before, self.after, self.steps = [], [], 0

    def register_step_pre_hook(self, hook):
        self.before.append(hook)
        return Handle(self.before, hook)

    def register_step_post_hook(self, hook):
        self.after.append(hook)
        return Handle(self.after, hook)

    def step(self):
        for hook in list(self.before):
            hook(self, (), {})
        self.steps += 1
        for hook in list(self.after):
            hook(self, (), {})


class Trace(Callback):
    def __init__(self):
        self.seen = []

    def on_step_begin(self, run, batch):
        self.seen.append(("step begin", run.step, batch))

    def on_step_end(self, run, batch):
        self.seen.append(("step end", run.step, batch))

    def on_train_iter_end(self, run):
        self.seen.append(("iter end", run.step, run.iteration))


def accumulate(run, batches, optimizer, every):
    for _ in run.batches(batches):
        if (run.batch_idx + 1) % every == 0:
            optimizer.step()


def test_an_optimizer_step_is_counted_and_fires_its_points():
    optimizer, trace = Optimizer(), Trace()
    with Loop([trace], optimizer=optimizer) as run:
        accumulate(run, "abcde", optimizer, every=2)
    assert trace.seen == [
        ("iter end", 0, 1),
        ("step begin", 0, "b"),
        ("step end", 1, "b"),
        ("iter end", 1, 2),
        ("iter end", 1, 3),
        ("step begin", 1, "d"),
        ("step end", 2, "d"),
        ("iter end", 2, 4),
        ("iter end", 2, 5),
    ]
    assert (run.step, run.iteration) == (2, 5)


def test_all_optimizer_steps_of_an_iteration_are_counted():
    optimizer = Optimizer()
    with Loop(optimizer=optimizer) as run:
        for _ in run.batches("ab"):
            optimizer.step()
            optimizer.step()
    assert (run.step, run.global_step, run.iteration) == (4, 4, 2)


def test_schedules_on_steps_follow_the_optimizer():
    optimizer, steps = Optimizer(), []

    class Trigger(Callback):
        def on_trigger(self, run):
            steps.append((run.step, run.iteration))

    with Loop([Trigger().when(Every(steps=2))], optimizer=optimizer) as run:
        accumulate(run, "abcdefghi", optimizer, every=2)
    assert steps == [(2, 4), (4, 8)]


@pytest.mark.parametrize("given", [dict, lambda pairs: [optimizer for _, optimizer in pairs]], ids=["dict", "list"])
def test_only_the_first_of_several_optimizers_is_watched(given):
    first, second = Optimizer(), Optimizer()
    with Loop(optimizer=given([("generator", first), ("critic", second)])) as run:
        for batch in run.batches("ab"):
            if batch == "a":
                first.step()
            second.step()
            second.step()
    assert run.step == 1
    assert second.after == []


@pytest.mark.parametrize("optimizer", [None, object(), {}, []], ids=["none", "without hooks", "an empty dict", "an empty list"])
def test_without_step_hooks_each_training_batch_is_a_step(optimizer):
    with Loop(optimizer=optimizer) as run:
        for _ in run.batches("abc"):
            for _ in run.batches("x", mode="val"):
                pass
    assert (run.step, run.iteration) == (3, 3)


@pytest.mark.parametrize("error", [None, ValueError("body")])
def test_the_hooks_are_removed_when_the_run_ends(error):
    optimizer = Optimizer()
    loop = Loop([Trace()], optimizer=optimizer)
    try:
        with loop as run:
            assert (len(optimizer.before), len(optimizer.after)) == (1, 1)
            if error is not None:
                raise error
    except ValueError:
        pass
    assert (optimizer.before, optimizer.after) == ([], [])
    optimizer.step()
    assert run.step == 0


def test_no_pre_hook_is_registered_without_on_step_begin_handlers():
    optimizer = Optimizer()
    with Loop([LambdaCallback(on_step_end=lambda: None)], optimizer=optimizer):
        assert (len(optimizer.before), len(optimizer.after)) == (0, 1)


def test_a_second_run_counts_from_zero():
    optimizer = Optimizer()
    loop = Loop(optimizer=optimizer)
    for _ in range(2):
        with loop as run:
            accumulate(run, "abcd", optimizer, every=1)
        assert run.step == 4
