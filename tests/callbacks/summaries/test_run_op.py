from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch

from hookpoint import Every, Hooks, Runner, errors
from hookpoint.callbacks import ModelSaver, RunOp
from hookpoint.core.loop.loop import Loop

CALLS = []


def note(run):
    CALLS.append((run.epoch, run.step))


@pytest.fixture(autouse=True)
def calls():
    CALLS.clear()
    return CALLS


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(0, 0), (1, 3), (2, 6)]),
        ({"run_before": False}, [(1, 3), (2, 6)]),
        ({"run_as_trigger": False}, [(0, 0)]),
        ({"run_before": False, "run_as_trigger": False, "run_step": True}, [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)]),
    ],
)
def test_options_set_when_the_function_is_called(train_on_disk, calls, options, expected):
    train_on_disk([RunOp(note, **options)], [{}, {}])
    assert calls == expected


def test_arguments_are_in_the_order_of_tensorpack(train_on_disk, calls):
    train_on_disk([RunOp(note, False, False, True)], [{}])
    assert calls == [(1, 1), (1, 2), (1, 3)]


def test_a_schedule_decides_when_to_call(train_on_disk, calls):
    train_on_disk([RunOp(note, run_before=False).when(Every(steps=2))], [{}, {}])
    assert calls == [(1, 2), (2, 4), (2, 6)]


def test_a_schedule_without_a_trigger_raises():
    with pytest.raises(errors.NoTrigger):
        Hooks([RunOp(note, run_as_trigger=False).when(Every(steps=2))])


def test_without_run_step_the_callback_does_not_listen_at_steps():
    assert Hooks([RunOp(note)]).dispatch("on_train_iter_end", mode="train") is None
    assert Hooks([RunOp(note, run_step=True)]).dispatch("on_train_iter_end", mode="train") is not None


def test_optimizer_steps_are_counted(calls):
    model = torch.nn.Linear(1, 1)
    data = [(torch.ones(2, 1), torch.ones(2, 1))] * 5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    op = RunOp(note, False, False, True)
    options = {"accumulate": 2, "extra_callbacks": [], "monitors": []}
    Runner(model, optimizer, torch.nn.MSELoss(), callbacks=[op], **options).fit(data, epochs=1)
    assert calls == [(1, 1), (1, 2), (1, 3)]


def test_a_resumed_run_calls_run_before_again_and_counts_new_steps(train_on_disk, calls):
    op = RunOp(note, run_as_trigger=False, run_step=True)
    train_on_disk([op, ModelSaver()], [{}])
    calls.clear()
    train_on_disk([op, ModelSaver()], [{}, {}])
    assert calls == [(1, 3), (2, 4), (2, 5), (2, 6)]


@pytest.mark.parametrize(
    "op",
    [
        lambda: CALLS.append("called"),
        lambda run: CALLS.append("called"),
        lambda trainer: CALLS.append("called"),
        lambda *, run: CALLS.append("called"),
        lambda run=None: CALLS.append("called" if run is not None else "without"),
        lambda other=1, **more: CALLS.append("called"),
        functools.partial(CALLS.append, "called"),
        functools.partial(lambda words, run: CALLS.append(words), "called"),
    ],
)
def test_a_function_takes_no_argument_or_the_run(train_on_disk, calls, op):
    train_on_disk([RunOp(op, run_as_trigger=False)], [])
    assert calls == ["called"]


@pytest.mark.parametrize(
    ("op", "says"),
    [(lambda x: x, "needs 'x'"), (lambda run, x: x, "needs 'x'"), (lambda *, loss, y: loss, "needs 'loss, y'"), (print, None)],
)
def test_a_function_that_requires_other_arguments_raises(op, says):
    if says is None:
        RunOp(op)
    else:
        with pytest.raises(TypeError, match=says):
            RunOp(op)


@pytest.mark.parametrize("op", [None, "train_op", 3])
def test_an_op_that_is_not_a_function_raises(op):
    with pytest.raises(TypeError, match="RunOp: op must be a function, got"):
        RunOp(op)


def test_an_op_that_is_never_called_raises():
    with pytest.raises(ValueError, match="RunOp: op would never be called"):
        RunOp(note, run_before=False, run_as_trigger=False)


def test_verbose_prints_each_call(train_on_disk, capsys):
    train_on_disk([RunOp(note, verbose=True)], [{}])
    assert capsys.readouterr().err == "running note\nrunning note\n"


def test_an_error_of_the_function_ends_the_run(train_on_disk):
    with pytest.raises(ZeroDivisionError):
        train_on_disk([RunOp(lambda: 1 / 0)], [{}])


def test_the_default_name_contains_the_name_of_the_function():
    assert RunOp(note).name == "RunOp(note)"
    assert RunOp(functools.partial(note)).name == "RunOp(partial)"
    assert RunOp(note, name="mine").name == "mine"


@pytest.mark.parametrize("again", [copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))])
def test_a_copy_counts_its_own_steps(again, calls):
    op = RunOp(note, run_before=False, run_as_trigger=False, run_step=True)
    other = again(op)
    with Loop([other]) as run:
        for _ in run.batches(range(2)):
            pass
    assert calls == [(1, 1), (1, 2)]
    assert (op._step, other._step) == (0, 2)
