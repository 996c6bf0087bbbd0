from __future__ import annotations

import pytest

from hookpoint import LambdaCallback
from hookpoint.core.errors import OutsideIteration
from hookpoint.core.loop.loop import Loop


def test_mindspore_names_follow_the_run(train):
    seen = []

    def look(run_context):
        args = run_context.original_args()
        seen.append((args.cur_epoch_num, args.cur_step_num, args.batch_num, args.epoch_num, args.mode))

    train([LambdaCallback(on_iter_begin=look)], epochs=2, batches="ab", val="x")
    assert seen == [
        (1, 1, 2, 2, "train"),
        (1, 2, 2, 2, "train"),
        (1, 2, 2, 2, "eval"),
        (2, 3, 2, 2, "train"),
        (2, 4, 2, 2, "train"),
        (2, 4, 2, 2, "eval"),
    ]


def test_the_objects_of_the_run_have_mindspore_names():
    given = {"model": object(), "optimizer": object(), "criterion": object()}
    train, val = ["a"], ["b"]
    with Loop(**given) as run:
        args = run.original_args()
        for _ in run.batches(train):
            pass
        for _ in run.batches(val, mode="val"):
            pass
        assert args.network is args.train_network is given["model"]
        assert (args.optimizer, args.loss_fn, args.metrics) == (given["optimizer"], given["criterion"], run.metrics)
        assert (args.train_dataset, args.valid_dataset) == (train, val)


def test_net_outputs_are_the_loss_or_else_the_outputs():
    with Loop() as run:
        args = run.original_args()
        for _ in run.batches("a"):
            run.outputs = "outputs"
            assert args.net_outputs == "outputs"
            run.loss = 0.0
            assert args.net_outputs == 0.0


def test_net_outputs_outside_an_iteration_are_the_logged_loss():
    with Loop() as run:
        args = run.original_args()
        with pytest.raises(OutsideIteration):
            args.net_outputs  # noqa: B018
        for batch in run.batches([1, 3]):
            run.log(loss=batch)
        assert args.net_outputs == 2.0


def test_a_loader_without_length_has_no_batch_num():
    with Loop() as run:
        for _ in run.batches(iter("ab")):
            assert run.original_args().batch_num is None


def test_values_set_by_a_callback_persist_and_take_precedence():
    with Loop() as run:
        args = run.original_args()
        args.best = 1
        args["batch_num"] = 99
        for _ in run.batches("ab"):
            assert run.original_args() is args
            assert (args.best, args["best"], args.get("best"), args.batch_num) == (1, 1, 1, 99)


def test_original_args_can_be_read_like_a_dict():
    with Loop() as run:
        args = run.original_args()
        assert ("cur_epoch_num" in args, "nothing" in args) == (True, False)
        assert (args["cur_epoch_num"], args.get("cur_epoch_num"), args.get("nothing"), args.get("nothing", 3)) == (
            0,
            0,
            None,
            3,
        )
        with pytest.raises(KeyError):
            args["nothing"]


def test_an_unknown_name_raises_with_the_known_names():
    with Loop() as run:
        args = run.original_args()
        args.zeta = 1
        with pytest.raises(AttributeError, match=r"the run's arguments have no 'nothing'; known: batch_num, .*, zeta"):
            args.nothing  # noqa: B018


def test_net_outputs_are_detached():
    class Tensor:
        def __init__(self, requires_grad):
            self.requires_grad = requires_grad

        def detach(self):
            return Tensor(requires_grad=False)

    loss, plain = Tensor(requires_grad=True), Tensor(requires_grad=False)
    with Loop() as run:
        for _ in run.batches("a"):
            run.loss = (loss, plain)
            first, second = run.original_args().net_outputs
            assert not first.requires_grad
            assert second is plain
            assert run.loss == (loss, plain)
