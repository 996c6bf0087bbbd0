"""MindSpore callbacks run unchanged: run_context, original_args(), request_stop(), and both families of names."""

from __future__ import annotations

import time

import pytest

from hookpoint import Callback, LambdaCallback, errors
from hookpoint.core.loop.loop import Loop


class StopAtTime(Callback):
    """Stop after `run_time` minutes of training; the start time is passed between points through the arguments."""

    def __init__(self, run_time):
        super().__init__()
        self.run_time = run_time * 60
        self.stopped_at = None

    def begin(self, run_context):
        cb_params = run_context.original_args()
        cb_params.init_time = time.time()

    def step_end(self, run_context):
        cb_params = run_context.original_args()
        epoch_num = cb_params.cur_epoch_num
        step_num = cb_params.cur_step_num
        loss = cb_params.net_outputs
        cur_time = time.time()
        if (cur_time - cb_params.init_time) > self.run_time:
            self.stopped_at = (epoch_num, step_num, loss)
            run_context.request_stop()


class SaveBestAccuracy(Callback):
    """Evaluate after each step, and save the network under its accuracy if that is the best so far."""

    def __init__(self, model, dataset, folder):
        super().__init__()
        self.model = model
        self.dataset = dataset
        self.folder = folder
        self.acc = 0

    def step_end(self, run_context):
        cb_params = run_context.original_args()
        result = self.model.eval(self.dataset)
        if result["accuracy"] > self.acc:
            self.acc = result["accuracy"]
            (self.folder / f"{self.acc}.ckpt").write_text(f"weight {cb_params.train_network.weight}")


class Net:
    """A classifier that predicts True for inputs above its weight."""

    weight = 0

    def eval(self, dataset):
        return {"accuracy": sum((x > self.weight) == label for x, label in dataset) / len(dataset)}


def train(callbacks, *, epochs=2, batches=3, losses=None, **given):
    with Loop(callbacks, **given) as run:
        for epoch in run.epochs(epochs):
            for batch in run.batches(range(batches)):
                run.loss = losses(batch) if losses else float(epoch * 10 + batch)
                run.log(loss=run.loss)
    return run


# The callbacks of its guide


def test_stop_at_time_continues_until_its_time_is_up():
    callback = StopAtTime(run_time=60)
    run = train([callback])
    assert callback.stopped_at is None
    assert run.iteration == 6


def test_stop_at_time_stops_after_its_time():
    callback = StopAtTime(run_time=-1)
    run = train([callback])
    assert callback.stopped_at == (1, 1, 10.0)
    assert (run.epoch, run.iteration) == (1, 1)


def test_save_best_accuracy_saves_each_new_best(tmp_path):
    net, data = Net(), [(1, False), (2, False), (3, True), (4, True)]
    callback = SaveBestAccuracy(net, data, tmp_path)
    with Loop([callback], model=net) as run:
        for _ in run.epochs(1):
            for weight in run.batches([3, 1, 0, 2]):
                net.weight = weight
    assert callback.acc == 1.0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0.75.ckpt": "weight 3", "1.0.ckpt": "weight 2"}


def test_a_callback_can_stop_at_a_low_loss():
    class StopAtLoss(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().net_outputs < 0.5:
                run_context.request_stop()

    run = train([StopAtLoss()], epochs=5, batches=4, losses=lambda batch: 1.0 - 0.3 * batch)
    assert (run.epoch, run.iteration) == (1, 3)


def test_a_callback_can_read_the_epoch_and_its_loss():
    lines = []

    class Inform(Callback):
        def epoch_end(self, run_context):
            cb_params = run_context.original_args()
            lines.append(f"{cb_params.cur_epoch_num}/{cb_params.epoch_num} loss {float(cb_params.net_outputs)}")

    train([Inform()])
    assert lines == ["1/2 loss 11.0", "2/2 loss 21.0"]


# The names


class EveryName(Callback):
    def __init__(self):
        self.seen = []

    def on_train_begin(self, run_context):
        self.seen.append("on_train_begin")

    def on_train_epoch_begin(self, run_context):
        self.seen.append("on_train_epoch_begin")

    def on_train_step_begin(self, run_context):
        self.seen.append("on_train_step_begin")

    def on_train_step_end(self, run_context):
        self.seen.append("on_train_step_end")

    def on_train_epoch_end(self, run_context):
        self.seen.append("on_train_epoch_end")

    def on_train_end(self, run_context):
        self.seen.append("on_train_end")

    def on_eval_begin(self, run_context):
        self.seen.append("on_eval_begin")

    def on_eval_epoch_begin(self, run_context):
        self.seen.append("on_eval_epoch_begin")

    def on_eval_step_begin(self, run_context):
        self.seen.append("on_eval_step_begin")

    def on_eval_step_end(self, run_context):
        self.seen.append("on_eval_step_end")

    def on_eval_epoch_end(self, run_context):
        self.seen.append("on_eval_epoch_end")

    def on_eval_end(self, run_context):
        self.seen.append("on_eval_end")


class BareNames(Callback):
    def __init__(self):
        self.seen = []

    def begin(self, run_context):
        self.seen.append("begin")

    def epoch_begin(self, run_context):
        self.seen.append("epoch_begin")

    def step_begin(self, run_context):
        self.seen.append("step_begin")

    def step_end(self, run_context):
        self.seen.append("step_end")

    def epoch_end(self, run_context):
        self.seen.append("epoch_end")

    def end(self, run_context):
        self.seen.append("end")


def test_every_name_is_called_in_order():
    callback = EveryName()
    with Loop([callback]) as run:
        for _ in run.epochs(1):
            for _ in run.batches([1]):
                pass
            for _ in run.batches([1], mode="val"):
                pass
    assert callback.seen == [
        "on_train_begin",
        *("on_train_epoch_begin", "on_train_step_begin", "on_train_step_end", "on_train_epoch_end"),
        *("on_eval_begin", "on_eval_epoch_begin", "on_eval_step_begin"),
        *("on_eval_step_end", "on_eval_epoch_end", "on_eval_end"),
        "on_train_end",
    ]


def test_bare_names_are_called_in_order():
    callback = BareNames()
    train([callback], epochs=1, batches=2)
    assert callback.seen == ["begin", "epoch_begin", *["step_begin", "step_end"] * 2, "epoch_end", "end"]


def test_bare_names_are_handlers_only_if_they_take_run_context():
    class Interval(Callback):
        def begin(self):
            raise AssertionError("no handler: it has no run_context")

        def end(self, run_context, unit):
            raise AssertionError("no handler: it takes more than run_context")

    with pytest.raises(errors.NotACallback) as caught:
        train([Interval()])
    assert str(caught.value) == (
        "Interval: a run calls none of its methods.\n"
        "  rename    begin(self) -> on_run_begin(self, run)\n"
        "            end(self, run_context, unit) -> on_run_end(self, run)"
    )
    Interval.step_end = lambda self, run_context: None
    train([Interval()])


def test_callbacks_run_in_the_order_of_the_list():
    order = []
    callbacks = [
        LambdaCallback(on_train_step_end=lambda run_context, number=number: order.append(number)) for number in range(3)
    ]
    train(callbacks, epochs=1, batches=1)
    assert order == [0, 1, 2]


# The arguments


def test_original_args_describe_the_run():
    net, optimizer, loss_fn, seen = object(), object(), object(), []

    class Look(Callback):
        def on_train_step_begin(self, run_context):
            cb_params = run_context.original_args()
            seen.append((cb_params.cur_epoch_num, cb_params.cur_step_num))

        def on_train_step_end(self, run_context):
            cb_params = run_context.original_args()
            seen.append((cb_params.cur_epoch_num, cb_params.cur_step_num, cb_params.net_outputs))
            assert cb_params.train_network is cb_params.network is net
            assert cb_params.optimizer is optimizer
            assert cb_params.loss_fn is loss_fn
            assert (cb_params.batch_num, cb_params.epoch_num, cb_params.mode) == (2, 2, "train")

    train([Look()], batches=2, model=net, optimizer=optimizer, criterion=loss_fn)
    assert seen == [(1, 1), (1, 1, 10.0), (1, 2), (1, 2, 11.0), (2, 3), (2, 3, 20.0), (2, 4), (2, 4, 21.0)]


def test_original_args_is_one_dict_for_the_whole_run():
    with Loop() as run:
        run.original_args().best = 1
        run.original_args()["worst"] = 2
        for _ in run.epochs(1):
            for _ in run.batches([1]):
                assert run.original_args().best == run.original_args()["best"] == 1
        assert run.original_args() is run.original_args()
        assert run.original_args().worst == 2
        assert "best" in run.original_args()
        with pytest.raises(AttributeError, match="the run's arguments have no 'wrost'; known: batch_num, best"):
            run.original_args().wrost  # noqa: B018


def test_net_outputs_are_the_outputs_without_a_loss():
    with Loop() as run:
        for _ in run.batches([1], mode="val"):
            run.outputs = [0.1, 0.9]
            assert run.original_args().net_outputs == [0.1, 0.9]
            assert run.original_args().mode == "eval"


def test_net_outputs_outside_an_iteration_raise():
    with Loop() as run, pytest.raises(errors.OutsideIteration, match="no iteration is running"):
        run.original_args().net_outputs  # noqa: B018
