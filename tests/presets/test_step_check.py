"""A Loop warns once about an optimizer or a scheduler that is never stepped."""

from __future__ import annotations

import pytest
import torch

from hookpoint import Loop


def trained(caplog, steps, scheduler=None, epochs=3):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    make = scheduler or (lambda one: torch.optim.lr_scheduler.StepLR(one, 1))
    made = make(optimizer)
    with Loop([], model=model, optimizer=optimizer, lr_scheduler=made, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches([1, 2]):
                optimizer.step()
            if steps == "scheduler":
                made.step()
            elif steps == "run":
                run.adjust_lr()
    return [one.getMessage() for one in caplog.records if "lr_scheduler" in one.getMessage()]


def test_a_scheduler_that_is_never_stepped_is_warned_about_once(caplog):
    assert trained(caplog, None) == [
        "the lr_scheduler was not stepped in epoch 1: call run.adjust_lr() or scheduler.step() in the loop"
    ]


@pytest.mark.parametrize("steps", ["scheduler", "run"])
def test_a_scheduler_that_is_stepped_causes_no_warning(caplog, steps):
    assert trained(caplog, steps) == []


def test_a_scheduler_that_does_not_count_its_steps_is_ignored(caplog):
    class Own:
        def step(self): ...

    assert trained(caplog, None, scheduler=lambda optimizer: Own()) == []


def test_a_dict_of_schedulers_is_checked_too(caplog):
    schedulers = {}

    def make(optimizer):
        schedulers.update(a=torch.optim.lr_scheduler.StepLR(optimizer, 1))
        return schedulers

    assert len(trained(caplog, None, scheduler=make)) == 1


ONE = (
    "the optimizer was not stepped in epoch 2, so run.step is still 0. "
    "Unless its first step comes later, call optimizer.step() in the loop"
)
FIRST = (
    "the first optimizer was not stepped in epoch 2, so run.step is still 0. "
    "run.step counts only its steps: list an optimizer that steps first"
)


@pytest.mark.parametrize(("count", "line"), [(1, ONE), (2, FIRST)])
def test_an_optimizer_that_is_never_stepped_is_warned_about_once(caplog, count, line):
    optimizers = [torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1) for _ in range(count)]
    with Loop(optimizer=optimizers[0] if count == 1 else optimizers, extra_callbacks=[], monitors=[]) as run:
        for epoch in run.epochs(4):
            for _ in run.batches([1, 2], mode="val" if epoch == 1 else "train"):
                optimizers[-1].zero_grad()
    assert [one.getMessage() for one in caplog.records] == [line]


def test_an_optimizer_without_step_hooks_causes_no_warning(caplog):
    with Loop(optimizer=object(), extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            assert list(run.batches([1, 2])) == [1, 2]
    assert caplog.records == []
