from __future__ import annotations

import pytest
import torch

from hookpoint import Callback
from hookpoint.callbacks import RunUpdateOps
from hookpoint.core.loop.loop import Loop
from hookpoint.core.run.run import loop_of


class PlainOptimizer:
    """An optimizer without hooks: the loop counts batches as steps."""

    def step(self):
        pass


def sgd():
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    return torch.optim.SGD([weight], lr=1.0)


@pytest.fixture
def train_with_an_update(train):
    """Train with a step every `accumulate` batches; return the steps and iterations at which the function was called."""

    def go(optimizer, *, accumulate=1, callback=None):
        called = []

        def begin(run):
            run.update_op(lambda: called.append((run.step, run.iteration)))

        def step(run, batch):
            if (batch + 1) % accumulate == 0 and optimizer is not None:
                optimizer.step()

        train([callback or RunUpdateOps()], batches=6, epoch_begin=begin, step=step, optimizer=optimizer)
        return called

    return go


def test_updates_run_after_each_step_of_an_optimizer_with_hooks(train_with_an_update):
    assert train_with_an_update(sgd()) == [(step, step - 1) for step in range(1, 7)]


def test_updates_run_once_per_accumulated_step(train_with_an_update):
    assert train_with_an_update(sgd(), accumulate=3) == [(1, 2), (2, 5)]


@pytest.mark.parametrize("optimizer", [None, PlainOptimizer()])
def test_updates_run_after_each_batch_without_optimizer_hooks(train_with_an_update, optimizer):
    assert train_with_an_update(optimizer) == [(step, step) for step in range(1, 7)]


def test_updates_see_the_changed_weights():
    optimizer, seen = sgd(), []
    (weight,) = optimizer.param_groups[0]["params"]
    with Loop([RunUpdateOps()], optimizer=optimizer) as run:
        run.update_op(lambda: seen.append(weight.item()))
        for _ in run.batches(range(3)):
            optimizer.step()
    assert seen == [-1.0, -2.0, -3.0]


def test_updates_run_in_the_order_of_registration():
    called = []
    with Loop([RunUpdateOps()]) as run:
        run.update_op(lambda: called.append("a"))
        run.update_op(lambda: called.append("b"))
        for _ in run.batches(range(2)):
            pass
    assert called == ["a", "b", "a", "b"]


def test_a_late_update_runs_from_then_on():
    called = []
    with Loop([RunUpdateOps()]) as run:
        for batch in run.batches(range(4)):
            if batch == 2:
                run.update_op(lambda: called.append(run.step))
    assert called == [3, 4]


def test_stop_training_stops_a_run_with_a_late_update():
    class Stop(Callback):
        def on_train_iter_end(self, run):
            run.model.stop_training = run.step == 4

    batches = []
    with Loop([RunUpdateOps(), Stop()], model=torch.nn.Linear(1, 1)) as run:
        for batch in run.batches(range(8)):
            batches.append(batch)
            if batch == 1:
                run.update_op(lambda: None)
    assert batches == [0, 1, 2, 3]


def test_a_late_update_runs_with_nested_iteration_over_a_pass():
    called = []
    with Loop([RunUpdateOps()]) as run:
        batches = run.batches(range(8))
        for batch in batches:
            if batch == 2:
                run.update_op(lambda: called.append(run.step))
            next(batches)
    assert called == [3, 4, 5, 6, 7, 8]


def test_a_subclass_with_its_own_handler_is_called_without_updates():
    class Counts(RunUpdateOps):
        steps = 0

        def on_train_iter_end(self, run):
            self.steps += 1

    counts = Counts()
    with Loop([counts]) as run:
        for _ in run.batches(range(3)):
            pass
    assert counts.steps == 3


def test_an_update_registered_at_the_end_of_the_loader_fetches_no_more():
    fetched = []

    def loader(run):
        yield from range(2)
        run.update_op(lambda: None)

    class Fetches(Callback):
        def on_batch_fetch_end(self, run):
            fetched.append(run.batch)

    with Loop([RunUpdateOps(), Fetches()]) as run:
        for _ in run.batches(loader(run)):
            pass
    assert fetched == [0, 1, None]


def test_a_closed_pass_stays_closed_when_handlers_are_refreshed():
    class Refreshes(Callback):
        def on_train_epoch_end(self, run):
            loop_of(run).refresh()
            loop_of(run).refresh()

    with Loop([RunUpdateOps(), Refreshes()]) as run:
        batches = run.batches(range(5))
        iterator = iter(batches)
        assert next(iterator) == 0
        batches.close()
        assert list(iterator) == []


def test_updates_do_not_run_in_validation():
    called = []
    with Loop([RunUpdateOps()]) as run:
        run.update_op(lambda: called.append(1))
        for _ in run.batches(range(3), mode="val"):
            pass
    assert called == []


def test_a_callback_can_be_reused_with_another_kind_of_optimizer(train_with_an_update):
    callback = RunUpdateOps()
    assert len(train_with_an_update(sgd(), callback=callback)) == 6
    assert len(train_with_an_update(None, callback=callback)) == 6
    assert len(train_with_an_update(sgd(), callback=callback)) == 6


def test_an_update_that_fails_ends_the_run():
    with pytest.raises(ZeroDivisionError) as caught, Loop([RunUpdateOps()]) as run:
        run.update_op(lambda: 1 / 0)
        for _ in run.batches(range(3)):
            pass
    assert caught.value.__notes__ == ["in callback RunUpdateOps at on_train_iter_end (step 1, rank 0)"]
