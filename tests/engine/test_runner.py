from __future__ import annotations

import logging
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookpoint import (
    After,
    At,
    Callback,
    CallbackPipeline,
    Every,
    LambdaCallback,
    MainCallback,
    ObjAttrParam,
    Once,
    StopRun,
    callbacks,
    on,
)
from hookpoint.core.errors import BadLoop, BadValue, MissingMetric, OutsideRun, UnknownPoint, UnknownSetting
from hookpoint.engine.runner import Runner

mse = nn.functional.mse_loss


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first, second):
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.fixture
def expected(net, batches):
    """The weights after two epochs over the batches."""
    model, optimizer = net()
    Runner(model, optimizer, mse).fit(batches, epochs=2)
    return weights(model)


class Points(Callback):
    """Record every point that fires."""

    def __init__(self, *prefixes):
        self.seen, self.prefixes = [], prefixes

    def run(self, hookpoint=None, logs=None):
        if hookpoint.startswith(self.prefixes or "on_") and "fetch" not in hookpoint:
            self.seen.append(hookpoint.removeprefix("on_"))


# fit


def test_fit_returns_the_run_with_the_means_of_its_last_epoch(runner, batches):
    seen = []
    look = LambdaCallback(on_train_iter_end=lambda loss: seen.append(loss.item()))
    run = runner(look).fit(batches, batches, epochs=2)
    assert (run.epoch, run.step, run.iteration, run.samples, run.mode) == (2, 10, 10, 40, None)
    assert run.epoch_complete
    assert set(run.metrics) == {"loss", "val_loss", "learning_rate"}
    assert run.metrics["loss"] == pytest.approx(sum(seen[5:]) / 5)
    assert [step for step, _ in run.monitors.get_history("loss")] == [5, 10]


def test_the_loss_is_averaged_over_samples(runner, batches):
    uneven = [batches[0], tuple(part[:1] for part in batches[1])]
    one = runner(optimizer=None)
    with torch.no_grad():
        losses = [mse(one.model(x), y).item() for x, y in uneven]
    assert one.validate(uneven)["val_loss"] == pytest.approx((4 * losses[0] + losses[1]) / 5)


def test_the_samples_function_sets_the_weight_of_each_batch(runner, batches, distance):
    uneven = [batches[0], tuple(part[:1] for part in batches[1])]

    def squared(batch):
        return len(batch[0]) ** 2

    one = runner(samples=squared, metrics={"distance": distance})
    with torch.no_grad():
        losses = [mse(one.model(x), y).item() for x, y in uneven]
        distances = [distance(one.model(x), y).item() for x, y in uneven]
    assert one.validate(uneven) == {
        "val_loss": pytest.approx((16 * losses[0] + losses[1]) / 17),
        "val_distance": pytest.approx((16 * distances[0] + distances[1]) / 17),
    }
    seen = []
    look = LambdaCallback(on_train_iter_end=lambda loss: seen.append(loss.item()))
    one = runner(look, samples=squared, log_every=0)
    run = one.fit(uneven, epochs=1)
    assert run.samples == 17
    assert run.metrics["loss"] == pytest.approx((16 * seen[0] + seen[1]) / 17)
    assert len(one.predict([x for x, _ in uneven])) == 2


def test_an_invalid_number_of_samples_raises(runner, batches):
    with pytest.raises(BadValue, match="samples= returned -1 for a batch of type tuple"):
        runner(samples=lambda batch: -1).validate(batches)
    with pytest.raises(BadLoop, match="samples must be a function that takes the batch"):
        runner(samples=True)


def test_batches_with_num_graphs_are_weighted_by_it(net):
    class Graphs:
        """Multiple graphs as one."""

        def __init__(self, graphs, value):
            self.num_graphs, self.nodes = graphs, torch.full((7, 3), value)

    def main(run):
        run.outputs = run.model(run.batch.nodes)
        run.log(value=run.batch.nodes[0, 0])
        return run.outputs.mean()

    model, optimizer = net()
    data = [Graphs(4, 1.0), Graphs(1, 6.0)]
    run = Runner(model, optimizer, main=main).fit(data, data, epochs=1)
    assert run.samples == 5
    assert (run.metrics["value"], run.metrics["val_value"]) == (2.0, 2.0)


def test_validation_runs_between_training_and_the_end_of_the_epoch(runner, batches):
    points = Points("on_epoch", "on_train_epoch", "on_val_epoch", "on_run")
    runner(points).fit(batches, batches, epochs=1)
    assert points.seen == [
        *["run_begin", "epoch_begin", "train_epoch_begin", "train_epoch_end"],
        *["val_epoch_begin", "val_epoch_end", "epoch_end", "run_end"],
    ]


def test_arguments_of_fit_are_available_from_on_setup_on(runner, batches):
    seen = []

    class Look(Callback):
        def on_setup(self, run):
            seen.append((run.train_loader, run.val_loader, run.max_epochs, run.device, run.name))

        on_run_begin = on_epoch_begin = on_setup

    val = batches[:1]
    runner(Look()).fit(batches, val, epochs=3)
    assert all(given == (batches, val, 3, torch.device("cpu"), "Linear") for given in seen)
    assert len(seen) == 5


@pytest.mark.parametrize("point", ["on_setup", "on_run_begin", "on_epoch_begin"])
def test_a_callback_may_change_the_number_of_epochs(runner, batches, point):
    def change(run):
        run.num_epochs = 2

    assert runner(LambdaCallback(**{point: change})).fit(batches, epochs=5).epoch == 2


def test_zero_epochs_train_nothing(runner, batches):
    points = Points("on_")
    one = runner(points)
    before = weights(one.model)
    run = one.fit(batches, epochs=0)
    assert (run.epoch, run.step) == (0, 0)
    assert points.seen == ["setup", "run_begin", "run_end"]
    assert same(weights(one.model), before)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": -1}, "epochs must be an integer >= 0, got -1."),
        ({"epochs": 1.5}, "epochs must be an integer >= 0, got 1.5."),
        ({"epochs": True}, "epochs must be an integer >= 0, got True."),
        ({"epochs": None}, "epochs must be an integer >= 0, got None."),
        ({"epochs": 1, "max_steps": -1}, "max_steps must be an integer >= 0, got -1."),
        ({"epochs": 1, "max_steps": "5"}, "max_steps must be an integer >= 0, got '5'."),
    ],
)
def test_invalid_epochs_and_max_steps_raise_before_anything_runs(runner, batches, given, message):
    points = Points()
    with pytest.raises(BadLoop) as caught:
        runner(points).fit(batches, **given)
    assert str(caught.value) == message
    assert points.seen == []


def test_fit_needs_an_optimizer(runner, batches):
    with pytest.raises(BadLoop) as caught:
        runner(optimizer=None).fit(batches, epochs=1)
    assert str(caught.value) == "fit needs an optimizer.\n  write     Runner(model, optimizer, criterion)"


@pytest.mark.parametrize("name", ["optimizer", "lr_scheduler"])
def test_fit_raises_if_an_object_was_replaced_that_it_would_not_use(runner, batches, name):
    one = runner()
    new = torch.optim.SGD(one.model.parameters(), lr=1.0)
    setattr(one, name, new if name == "optimizer" else torch.optim.lr_scheduler.StepLR(one.optimizer, 1))
    with pytest.raises(BadLoop) as caught:
        one.fit(batches, epochs=1)
    assert str(caught.value) == (
        f"runner.{name} was replaced, but fit would still use the {name} that the Runner was created with.\n"
        f"  create    a new Runner with {name}=..."
    )


def test_a_replaced_model_must_have_parameters_that_the_optimizer_changes(runner, batches):
    one = runner()
    one.model = nn.Sequential(one.model)
    assert one.fit(batches, epochs=1).step == 5
    one.model = nn.Linear(3, 2)
    with pytest.raises(BadLoop, match="the optimizer has none of the model's parameters"):
        one.fit(batches, epochs=1)
    assert set(one.validate(batches)) == {"val_loss"}


class NoStep(MainCallback):
    def on_iter_backward(self, run):
        run.backward()


def test_a_main_callback_that_never_steps_the_optimizer_warns(runner, batches, caplog):
    assert runner(main=NoStep()).fit(batches, epochs=2).step == 0
    assert caplog.messages == [
        "NoStep.on_iter_backward made no optimizer step in 5 batches; call run.backward() and run.optimizer_step()"
    ]


@pytest.mark.parametrize("request_", ["skip_batch", "stop"])
def test_an_epoch_without_steps_is_not_reported_if_a_callback_asked_for_it(runner, batches, caplog, request_):
    ask = LambdaCallback(on_train_iter_begin=lambda run: getattr(run, request_)())
    runner(ask, main=NoStep()).fit(batches, epochs=1)
    assert caplog.messages == []


def test_an_optimizer_of_another_model_raises_at_once(runner):
    with pytest.raises(BadLoop, match="the optimizer has none of the model's parameters"):
        runner(optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))


def test_an_unavailable_device_raises_at_once(runner):
    with pytest.raises(BadLoop, match="device='cuda': no CUDA device is available"):
        runner(device="cuda")


def test_a_missing_criterion_raises(runner, batches):
    with pytest.raises(BadLoop, match=r"there is no criterion, and the model returned Tensor, which is not a loss") as caught:
        runner(criterion=None).fit(batches, epochs=1)
    assert "in the step of batch 0, (float32[4, 3], float32[4, 2]) (step 0, rank 0)" in caught.value.__notes__


def test_metrics_are_computed_without_a_criterion(runner, batches, distance):
    values = runner(criterion=None, metrics={"far": distance}).validate(batches)
    assert list(values) == ["val_far"]


def test_a_fit_inside_a_fit_of_the_same_runner_raises(runner, batches):
    @on("on_train_iter_end")
    def again():
        one.fit(batches, epochs=1)

    one = runner(again)
    with pytest.raises(
        OutsideRun, match=r"this Runner is already running.\n  use       validate or predict, or a second Runner"
    ):
        one.fit(batches, epochs=1)


def test_a_second_fit_is_a_new_run_that_keeps_the_weights(runner, batches, expected):
    one = runner()
    first, second = one.fit(batches, epochs=1), one.fit(batches, epochs=1)
    assert first is not second
    assert (second.epoch, second.step, len(second.monitors.get_history("loss"))) == (1, 5, 1)
    assert same(weights(one.model), expected)


# Data


class Named(nn.Linear):
    def forward(self, x, scale=None):
        return super().forward(x["values"] if isinstance(x, dict) else x) * (1 if scale is None else scale)


@dataclass
class Batch:
    x: Any
    wanted: Any


def forms(batches):
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    return {
        "loader": DataLoader(TensorDataset(x, y), batch_size=4),
        "list": batches,
        "lists": [list(batch) for batch in batches],
        "dicts": [{"x": a, "wanted": b} for a, b in batches],
        "dataclasses": [Batch(a, b) for a, b in batches],
        "nested": [{"x": {"values": a}, "wanted": b} for a, b in batches],
        "several inputs": [(a, torch.ones(1), b) for a, b in batches],
    }


@pytest.mark.parametrize("form", ["loader", "list", "lists", "dicts", "dataclasses", "nested", "several inputs"])
def test_every_form_of_data_trains_the_same(net, batches, expected, form):
    torch.manual_seed(0)
    model, optimizer = net(Named(3, 2))
    data = forms(batches)[form]
    runner = Runner(model, optimizer, mse)
    run = runner.fit(data, data, epochs=2)
    assert run.samples == 40
    assert same(weights(model), expected)
    predicted = torch.cat(runner.predict(data))
    with torch.no_grad():
        assert torch.equal(predicted, torch.cat([model(x) for x, _ in batches]))


def test_a_generator_can_be_used_for_one_epoch(net, runner, batches):
    one, other = runner(), runner()
    run = one.fit((batch for batch in batches), epochs=1)
    other.fit(batches, epochs=1)
    assert run.epoch_complete
    assert same(weights(one.model), weights(other.model))


@pytest.mark.parametrize("kind", [lambda part: part, lambda part: part.numpy()], ids=["tensors", "arrays"])
def test_a_tuple_of_tensors_or_arrays_is_shuffled_like_a_loader(runner, batches, kind):
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    one, other = runner(seed=5), runner(seed=5)
    run = one.fit((kind(x), kind(y)), (kind(x), kind(y)), epochs=2, batch_size=8)
    other.fit(DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True), DataLoader(TensorDataset(x, y), 8), epochs=2)
    assert same(weights(one.model), weights(other.model))
    assert run.step == 6


def test_batch_size_may_apply_to_the_validation_data_alone(runner, batches):
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    run = runner().fit(batches, (x, y), epochs=1, batch_size=5)
    assert len(run.val_loader) == 4
    with pytest.raises(BadLoop, match="batch_size does not apply"):
        runner().fit(batches, batches, epochs=1, batch_size=5)


@pytest.mark.parametrize(
    "returned",
    [
        lambda loss, outputs: loss,
        lambda loss, outputs: {"loss": loss, "logits": outputs},
        lambda loss, outputs: {"half": loss * 0.5, "other half": loss * 0.5},
        lambda loss, outputs: SimpleNamespace(loss=loss, logits=outputs),
    ],
    ids=["loss", "dict with the loss", "dict of losses", "object with the loss"],
)
def test_a_model_may_return_its_loss(net, batches, expected, returned):
    class Own(nn.Linear):
        def forward(self, x, y):
            outputs = super().forward(x)
            return returned(mse(outputs, y), outputs)

    torch.manual_seed(0)
    model, optimizer = net(Own(3, 2))
    run = Runner(model, optimizer).fit(batches, batches, epochs=2)
    assert same(weights(model), expected)
    assert run.metrics["val_loss"] > 0


def test_a_model_without_a_loss_in_eval_mode_has_no_val_loss(net, batches):
    class Detector(nn.Linear):
        def forward(self, x, y):
            outputs = super().forward(x)
            return {"box": mse(outputs, y)} if self.training else [{"boxes": one} for one in outputs]

    model, optimizer = net(Detector(3, 2))
    run = Runner(model, optimizer).fit(batches, batches, epochs=1)
    assert "val_loss" not in run.metrics
    assert run.metrics["loss"] > 0


class Adversaries(MainCallback):
    """Two models and two optimizers, trained alternately, as in a GAN."""

    def on_iter_forward(self, run):
        real, _ = run.batch
        run.outputs = run.model["maker"](torch.ones(len(real), 2))
        run.loss = run.model["judge"](run.outputs).mean()

    def on_iter_backward(self, run):
        real, _ = run.batch
        judge, maker = run.optimizer["judge"], run.optimizer["maker"]
        maker.zero_grad()
        run.loss.backward()
        maker.step()
        judge.zero_grad()
        loss = run.model["judge"](real).mean() - run.model["judge"](run.outputs.detach()).mean()
        loss.backward()
        judge.step()
        run.log(judge_loss=loss)

    def on_pred_forward(self, run):
        run.outputs = run.model["maker"](run.batch)


def adversaries():
    torch.manual_seed(0)
    models = {"maker": nn.Linear(2, 3), "judge": nn.Linear(3, 1)}
    return models, {name: torch.optim.SGD(models[name].parameters(), lr=0.1) for name in ("maker", "judge")}


def test_a_main_callback_can_train_several_models_and_optimizers(batches):
    models, optimizers = adversaries()
    before = {name: weights(model) for name, model in models.items()}
    models["judge"].eval()
    runner = Runner(models, optimizers, main=Adversaries())
    run = runner.fit(batches, batches, epochs=2)
    assert run.step == 10  # steps of the first optimizer
    assert set(run.metrics) == {"loss", "judge_loss", "val_loss"}
    for name, model in models.items():
        assert not same(weights(model), before[name])
    assert (models["maker"].training, models["judge"].training) == (True, False)
    assert runner.predict([torch.ones(4, 2)])[0].shape == (4, 3)


def test_several_models_or_optimizers_without_a_main_callback_raise(net, batches):
    models, optimizers = adversaries()
    with pytest.raises(BadLoop, match="there are multiple models"):
        Runner(models, optimizers["maker"], mse).fit(batches, epochs=1)
    runner = Runner(models, optimizers, main=lambda run: run.model["judge"](run.batch[0]).mean())
    assert list(runner.validate(batches)) == ["val_loss"]
    with pytest.raises(BadLoop) as caught:
        runner.fit(batches, epochs=1)
    assert str(caught.value) == (
        "there are multiple optimizers, and a Runner cannot decide when to call step() on each of them.\n"
        "  write     a MainCallback whose on_iter_backward uses run.optimizer['name']"
    )


# Data that fails


@pytest.mark.parametrize("loader", [[], (), iter(())], ids=["list", "tuple", "unsized"])
def test_training_data_without_a_batch_raises(runner, loader):
    with pytest.raises(BadLoop) as caught:
        runner().fit(list(loader) if isinstance(loader, tuple) else loader, epochs=1)
    assert str(caught.value) == (
        "the training data yielded no batch in epoch 1.\n"
        "  check     that the loader is neither empty nor an exhausted generator"
    )


def test_an_exhausted_generator_raises_in_the_second_epoch(runner, batches):
    with pytest.raises(BadLoop, match="the training data yielded no batch in epoch 2"):
        runner().fit((batch for batch in batches), epochs=2)


@pytest.mark.parametrize("val", [[], iter(())], ids=["sized", "unsized"])
def test_validation_data_without_a_batch_raises(runner, batches, val):
    message = "the validation data yielded no batch.\n  check     that the loader is neither empty nor an exhausted generator"
    for job in (lambda: runner().fit(batches, val, epochs=1), lambda: runner().validate(val)):
        with pytest.raises(BadLoop) as caught:
            job()
        assert str(caught.value) == message


def test_predict_returns_an_empty_list_without_batches(runner):
    assert runner().predict([]) == []


@pytest.mark.parametrize("verdict", ["skip_batch", "stop_epoch", "stop"])
def test_an_epoch_whose_batches_are_all_skipped_does_not_raise(runner, batches, verdict):
    point = "on_train_iter_begin" if verdict == "skip_batch" else "on_train_epoch_begin"
    run = runner(LambdaCallback(**{point: lambda run: getattr(run, verdict)()})).fit(batches, epochs=2)
    assert (run.iteration, run.step) == (0, 0)
    assert run.epoch == (1 if verdict == "stop" else 2)


def test_an_error_in_the_loader_ends_the_run(runner, batches):
    def loader():
        yield from batches[:2]
        raise OSError("disk")

    points = Points("on_exception", "on_run_end", "on_epoch_end", "on_train_epoch_end", "on_train_iter_end")
    one = runner(points)
    one.model.eval()
    with pytest.raises(OSError, match="disk"):
        one.fit(loader(), epochs=1)
    assert points.seen == ["train_iter_end", "train_iter_end", "exception", "run_end"]
    assert not one.model.training
    assert one.fit(batches, epochs=1).step == 5  # and the runner can run again


@pytest.mark.parametrize("job", ["fit", "validate", "predict"])
def test_an_error_describes_the_shapes_of_the_batch(runner, batches, job):
    wrong = [batches[0], (torch.ones(4, 7), torch.ones(4, 2))]
    one = runner()
    jobs = {
        "fit": lambda: one.fit(wrong, epochs=1),
        "validate": lambda: one.validate(wrong),
        "predict": lambda: one.predict(wrong),
    }
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        jobs[job]()
    step = 1 if job == "fit" else 0
    assert f"in the step of batch 1, (float32[4, 7], float32[4, 2]) (step {step}, rank 0)" in caught.value.__notes__


# Non-finite losses


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_on_nonfinite_warn_warns_once_per_streak_of_bad_epochs(runner, batches, caplog, bad):
    def criterion(outputs, targets):
        loss = mse(outputs, targets)
        return loss * bad if bad_epochs and run_of[0].epoch in bad_epochs else loss

    run_of, bad_epochs = [], {2, 3, 5}
    note = LambdaCallback(on_run_begin=lambda run: run_of.append(run), on_backward_begin=lambda run: run.skip_backward())
    with caplog.at_level(logging.WARNING, logger="hookpoint"):
        run = runner(note, criterion=criterion, on_nonfinite="warn").fit(batches, epochs=5)
    assert run.epoch == 5
    assert [record.message for record in caplog.records] == [
        f"all losses in epoch {epoch} are NaN or infinite: the mean at step 0 is {bad}; training continues" for epoch in (2, 5)
    ]


def test_the_warning_for_a_nonfinite_loss_names_the_steps(runner, batches, caplog):
    poison = LambdaCallback(on_train_iter_begin=lambda run: run.step == 7 and run.model.weight.data.fill_(torch.nan))
    with caplog.at_level(logging.WARNING, logger="hookpoint"):
        run = runner(poison, on_nonfinite="warn").fit(batches, epochs=3)
    assert [record.message for record in caplog.records] == [
        "the training loss of epoch 2 (steps 6 to 10) is nan",
        "all losses in epoch 3 are NaN or infinite: the mean at step 15 is nan; training continues",
    ]
    assert run.step == 15
    assert np.isnan(run.metrics["loss"])


# max_steps


@pytest.mark.parametrize(
    ("max_steps", "steps", "epochs", "complete", "validations"),
    [(3, 3, 1, False, 0), (5, 5, 1, True, 1), (7, 7, 2, False, 1), (10, 10, 2, True, 2), (99, 15, 3, True, 3)],
)
def test_max_steps_ends_the_run(net, batches, max_steps, steps, epochs, complete, validations):
    model, optimizer = net()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    runner = Runner(model, optimizer, mse, lr_scheduler=scheduler)
    run = runner.fit(batches, batches, epochs=3, max_steps=max_steps)
    assert (run.step, run.epoch, run.epoch_complete) == (steps, epochs, complete)
    assert len(run.monitors.get_history("val_loss")) == scheduler.last_epoch == validations


@pytest.mark.parametrize("max_steps", [{"max_steps": 8}, {}])
def test_a_validation_that_is_due_at_the_last_step_still_runs(runner, batches, max_steps):
    stop = [] if max_steps else [callbacks.MaxSteps(8)]
    run = runner(*stop).fit(batches, batches, epochs=3, validate_every=Every(steps=4), **max_steps)
    assert [step for step, _ in run.monitors.get_history("val_loss")] == [4, 8]


def test_max_steps_counts_steps_and_not_batches(runner, batches):
    run = runner(accumulate=2).fit(batches, epochs=9, max_steps=4)
    assert (run.step, run.iteration) == (4, 7)
    assert runner(accumulate=2).fit(iter(batches), epochs=1, max_steps=3).step == 3


def test_max_steps_reached_as_stop_epoch_ends_the_epoch_still_validates_and_steps_the_scheduler(net, batches):
    stop_epoch = LambdaCallback(on_train_iter_end=lambda run: run.stop_epoch())
    model, optimizer = net()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    runner = Runner(model, optimizer, mse, lr_scheduler=scheduler, accumulate=2, callbacks=[stop_epoch])
    run = runner.fit(batches, batches, epochs=3, max_steps=1)  # the step of an incomplete window
    assert (run.step, run.iteration, run.epoch) == (1, 1, 1)
    assert len(run.monitors.get_history("val_loss")) == scheduler.last_epoch == 1


@pytest.mark.parametrize("as_callback", [False, True])
def test_max_steps_beyond_the_length_of_the_loader_resumes_exactly(net, batches, tmp_path, as_callback):
    class TooShort:
        def __iter__(self):
            return iter(batches)

        def __len__(self):
            return 2

    def train(max_steps, workdir=None):
        model, optimizer = net()
        stop = [callbacks.MaxSteps(max_steps)] if as_callback else []
        savers = [callbacks.ModelSaver()] if workdir else []
        runner = Runner(model, optimizer, mse, callbacks=[*stop, *savers], workdir=workdir)
        run = runner.fit(TooShort(), epochs=2, max_steps=None if as_callback else max_steps)
        return run, model

    assert train(4, tmp_path)[0].epoch_complete is False
    run, model = train(10, tmp_path)
    assert (run.step, run.iteration, run.epoch) == (10, 10, 2)
    assert same(weights(model), weights(train(10)[1]))


def test_max_steps_of_zero_trains_nothing(runner, batches):
    run = runner().fit(batches, epochs=2, max_steps=0)
    assert (run.step, run.epoch) == (0, 0)


# Seeds, determinism, initial weights


def noisy():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def shuffled(batches):
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    return DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)


def test_runs_with_the_same_seed_are_equal(runner, batches):
    drawn = []

    def fit(seed):
        draw = LambdaCallback(on_run_begin=lambda: drawn.append((random.random(), np.random.rand())))
        one = runner(draw, model=noisy(), seed=seed)
        one.fit(shuffled(batches), epochs=2)
        return weights(one.model)

    first = fit(3)
    torch.rand(17)
    assert same(first, fit(3))
    assert not same(first, fit(4))
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_generators_are_unchanged_without_a_seed(runner, batches):
    one = runner()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one.fit(batches, batches, epochs=1)
    assert torch.equal(torch.rand(1), expected)


def test_deterministic_applies_only_during_fit(runner, batches):
    seen = []
    look = LambdaCallback(on_train_iter_end=lambda: seen.append(torch.are_deterministic_algorithms_enabled()))
    runner(look, deterministic=True).fit(batches, epochs=1)
    assert seen == [True] * 5
    assert not torch.are_deterministic_algorithms_enabled()


def test_init_weights_are_loaded_into_the_model(runner, batches):
    source = nn.Linear(3, 2)
    one = runner(init_weights=source.state_dict())
    assert same(weights(one.model), weights(source))
    models, optimizers = adversaries()
    maker = nn.Linear(2, 3)
    Runner(models, optimizers, main=Adversaries(), init_weights={"maker": maker.state_dict()})
    assert same(weights(models["maker"]), weights(maker))


# Callbacks


def test_on_adds_a_function(runner, batches):
    one = runner()
    seen = []

    @one.on("on_epoch_end")
    def say(run):
        seen.append(run.epoch)

    @one.on("on_train_iter_end", when=Every(steps=2))
    def often(run):
        seen.append(f"step {run.step}")

    assert say.__name__ == "say"
    one.fit(batches, epochs=1)
    assert seen == ["step 2", "step 4", 1]


def test_on_rejects_an_unknown_point_and_does_not_add_the_function(runner, batches):
    one = runner()
    with pytest.raises(UnknownPoint, match=r"on_epoch_ends is not a point. Did you mean on_epoch_end"):

        @one.on("on_epoch_ends")
        def say(run): ...

    assert one.fit(batches, epochs=1).step == 5


def test_a_callback_with_an_unknown_point_raises_when_the_runner_is_created(runner):
    class Wrong(Callback):
        def on_epoch_ends(self, run): ...

    with pytest.raises(UnknownPoint, match=r"Wrong.on_epoch_ends is not a point. Did you mean on_epoch_end"):
        runner(Wrong())


def test_the_list_of_callbacks_is_not_modified(net, batches):
    model, optimizer = net()
    given = [Points()]
    runner = Runner(model, optimizer, mse, callbacks=given, metrics={"far": mse})
    runner.on("on_epoch_end")(lambda run: None)
    runner.fit(batches, epochs=1)
    assert len(given) == 1


class Best(Callback):
    """Count epochs and keep the best loss: state that every run must reset."""

    def __init__(self):
        self.epochs, self.best, self.told = 0, None, []

    def on_run_begin(self):
        self.epochs, self.best = 0, None

    def on_epoch_end(self, run, logs):
        self.epochs += 1
        self.best = logs["loss"] if self.best is None else min(self.best, logs["loss"])
        self.told.append((run.epoch, self.epochs, self.best))

    def on_trigger(self, run):
        self.told.append(("trigger", run.step))


def test_callbacks_can_be_shared_by_two_runners(runner, batches):
    @on("on_train_iter_end", when=Every(steps=3) | Once(steps=4))
    def often(run):
        told.append(run.step)

    def fit(best):
        told.clear()
        callbacks = [CallbackPipeline([best, often])]
        one = runner(*callbacks)
        one.fit(batches, batches, epochs=2)
        return best.told, list(told), weights(one.model)

    told = []
    shared = Best().when(Every(steps=4))
    first = fit(shared)
    length = len(first[0])
    second = fit(shared)
    fresh = fit(Best().when(Every(steps=4)))
    assert first[0][:length] == second[0][length:] == fresh[0]
    assert first[1] == second[1] == fresh[1] == [3, 4, 6, 9]
    assert same(second[2], fresh[2])


# When to validate


def validations(runner, batches, when, *, epochs=3):
    """Return the steps after which a validation ran."""
    seen = []
    look = LambdaCallback(on_val_epoch_end=lambda run: seen.append(run.step))
    runner(look).fit(batches, batches[:1], epochs=epochs, validate_every=when)
    return seen


@pytest.mark.parametrize(
    ("when", "steps"),
    [
        (None, [5, 10, 15]),
        (Every(epochs=2), [10]),
        (At(epochs=[1, 3]), [5, 15]),
        (Every(steps=4), [4, 8, 12]),
        (At(steps=[1, 7]), [1, 7]),
        (Every(iterations=6), [6, 12]),
        (Every(steps=4) | Every(epochs=2), [4, 8, 10, 12]),
        (Every(epochs=1) | At(steps=2), [2, 5, 10, 15]),
        (~Every(epochs=2), [5, 15]),
    ],
    ids=repr,
)
def test_validation_runs_when_its_schedule_fires(runner, batches, when, steps):
    assert validations(runner, batches, when) == steps


def test_callbacks_triggered_at_the_same_step_see_the_validation_results(runner, batches):
    seen = []

    class Looks(Callback):
        def on_trigger(self, run):
            seen.append((run.step, run.monitors.get_history("val_loss")[-1][0]))

    runner(Looks().when(Every(steps=2))).fit(batches, batches[:1], epochs=1, validate_every=Every(steps=2))
    assert seen == [(2, 2), (4, 4)]


def test_validate_every_without_validation_data_raises(runner, batches):
    with pytest.raises(BadLoop) as caught:
        runner().fit(batches, epochs=1, validate_every=Every(steps=1))
    assert str(caught.value) == (
        "validate_every needs validation data.\n  write     fit(train, val, validate_every=..., epochs=...)"
    )


def test_a_validation_between_steps_is_not_reported_as_a_slow_callback(runner, batches, caplog):
    with caplog.at_level(logging.WARNING, logger="hookpoint"):
        runner().fit(batches * 2, batches * 9, epochs=1, validate_every=Every(steps=1))
    assert caplog.records == []


@pytest.mark.parametrize("when", [Every(steps=100), Every(epochs=4), After(epochs=4)], ids=repr)
def test_a_validation_that_was_never_due_warns_at_the_end(runner, batches, caplog, when):
    assert validations(runner, batches, when) == []
    assert caplog.messages == [f"validation never ran: validate_every={when!r} was not due in 15 steps (3 epochs)"]


def test_a_run_that_is_stopped_before_its_first_validation_does_not_warn(runner, batches, caplog):
    stop = LambdaCallback(on_train_epoch_end=lambda run: run.stop("enough"))
    runner(stop).fit(batches, batches, epochs=9, validate_every=Every(epochs=5))
    assert caplog.messages == []


def test_values_of_a_validation_between_steps_are_logged_with_their_step(runner, batches):
    run = runner().fit(batches, batches, epochs=1, validate_every=Every(steps=2))
    assert [step for step, _ in run.monitors.get_history("val_loss")] == [2, 4]
    assert run.metrics["loss"] == run.monitors.get_history("loss")[0][1]


def test_validation_runs_after_stop_epoch_but_not_after_stop(runner, batches):
    for verdict, count in (("stop_epoch", 2), ("stop", 0)):
        ask = LambdaCallback(on_train_iter_end=lambda run, verdict=verdict: getattr(run, verdict)())
        run = runner(ask).fit(batches, batches, epochs=2)
        assert len(run.monitors.get_history("val_loss")) == count


# validate and predict


def test_validate_returns_the_names_as_logged(runner, batches, distance):
    @on("on_val_epoch_end")
    def log(run):
        run.log(extra=1, val_given=2)
        run.put_scalar("as it is", 3)

    one = runner(log, metrics={"far": distance})
    values = one.validate(batches)
    assert set(values) == {"val_loss", "val_far", "val_extra", "val_given", "as it is"}
    assert all(type(value) is float for value in values.values())
    assert set(one.fit(batches, batches, epochs=1).metrics) >= set(values)


@pytest.mark.parametrize(("job", "mode"), [("validate", "val"), ("predict", "pred")])
def test_validate_and_predict_fire_only_their_own_points(runner, batches, job, mode):
    points = Points()
    getattr(runner(points), job)(batches[:1])
    iteration = ["iter_begin", f"{mode}_iter_begin", f"{mode}_iter_end", "iter_end"]
    assert points.seen == [f"{mode}_epoch_begin", *iteration, f"{mode}_epoch_end"]


def test_predict_returns_outputs_in_eval_mode_without_gradients(runner, batches):
    one = runner(model=noisy())
    outputs = one.predict(batches)
    one.model.eval()
    assert [output.shape for output in outputs] == [(4, 2)] * 5
    for output, (inputs, _) in zip(outputs, batches, strict=True):
        assert torch.equal(output, one.model(inputs))
        assert not output.requires_grad


def test_predict_takes_inputs_without_targets(runner, batches):
    one = runner()
    x = torch.cat([inputs for inputs, _ in batches])
    for data, options in ([x[:8], x[8:]], {}), ((x,), {"batch_size": 10}), ([[x]], {}):
        # Close, not equal: kernels for other batch sizes may round differently.
        assert torch.allclose(torch.cat(one.predict(data, **options)), torch.cat(one.predict(batches)), atol=1e-6)


def test_predict_iter_computes_lazily(runner, batches):
    asked = []

    def loader():
        for batch in batches:
            asked.append(batch)
            yield batch

    one = runner()
    outputs = one.predict_iter(loader())
    assert asked == []
    next(outputs)
    assert len(asked) == 1
    assert len(list(outputs)) == 4


def test_predict_iter_restores_the_model_between_predictions(runner, batches):
    one = runner(model=noisy())
    for _ in one.predict_iter(batches):
        assert all(part.training for part in one.model.modules())
        assert torch.is_grad_enabled()


def test_callbacks_see_the_model_in_eval_mode_in_validate_and_predict(runner, batches):
    seen = []

    class Look(Callback):
        def on_val_iter_end(self, run):
            seen.append((run.model.training, torch.is_grad_enabled()))

        on_val_epoch_begin = on_val_epoch_end = on_pred_iter_end = on_pred_epoch_end = on_val_iter_end

    one = runner(Look())
    one.validate(batches)
    one.predict(batches)
    assert seen == [(False, False)] * 13


def test_closing_predict_iter_early_ends_the_pass_normally(runner, batches):
    points = Points("on_pred", "on_exception")
    one = runner(points)
    for _ in one.predict_iter(batches):
        break
    assert points.seen == ["pred_epoch_begin", "pred_iter_begin", "pred_iter_end", "pred_epoch_end"]
    assert one.fit(batches, epochs=1).step == 5


def test_predict_iter_raises_for_invalid_data_when_it_is_called(runner):
    with pytest.raises(BadLoop, match="3 yields no batches"):
        runner().predict_iter(3)


def test_a_skipped_batch_has_no_prediction_and_no_loss(runner, batches):
    class Skip(MainCallback):
        def on_pred_forward(self, run):
            super().on_pred_forward(run)
            if run.batch_idx == 1:
                run.skip_batch()

        def on_val_forward(self, run):
            super().on_val_forward(run)
            if run.batch_idx != 1:
                run.skip_batch()

    one = runner(Skip())
    assert len(one.predict(batches)) == 4
    assert one.validate(batches) == runner().validate(batches[1:2])


@pytest.mark.parametrize("verdict", ["retry", "skip_batch"])
def test_an_error_in_validation_or_prediction_can_be_handled(net, batches, verdict):
    class Tight(nn.Linear):
        fails = 1

        def forward(self, inputs):
            if inputs is batches[1][0] and self.fails:
                self.fails -= 1
                raise MemoryError("no room")
            return super().forward(inputs)

    answer = LambdaCallback(on_iter_error=lambda run, error: getattr(run, verdict)())
    for job in ("validate", "predict"):
        torch.manual_seed(0)
        model, _ = net(Tight(3, 2))
        got = getattr(Runner(model, None, mse, callbacks=[answer]), job)(batches)
        left = batches if verdict == "retry" else [batches[0], *batches[2:]]
        model.fails = 0
        wanted = getattr(Runner(model, None, mse), job)(left)
        assert got == wanted if job == "validate" else torch.equal(torch.cat(got), torch.cat(wanted))


# Validation and prediction inside a fit


class During(Callback):
    """Call the runner at a point of its fit; `runner` is set later."""

    def __init__(self, point, job, data):
        self.point, self.job, self.data, self.results = point, job, data, []
        self.is_busy = False

    def run(self, hookpoint=None, logs=None):
        if hookpoint == self.point and not self.is_busy:
            self.is_busy = True
            self.results.append(self.job(self.runner, self.data))
            self.is_busy = False


JOBS = {
    "validate": lambda runner, data: runner.validate(data),
    "predict": lambda runner, data: runner.predict(data),
    "predict_iter": lambda runner, data: list(runner.predict_iter(data)),
    "abandoned": lambda runner, data: next(runner.predict_iter(data)),
}


@pytest.mark.thin(24)
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    "point",
    [
        *["on_setup", "on_run_begin", "on_epoch_begin", "on_train_epoch_begin", "on_train_iter_begin", "on_backward_end"],
        *["on_step_begin", "on_train_iter_end", "on_train_epoch_end", "on_val_epoch_begin", "on_epoch_end", "on_run_end"],
    ],
)
def test_a_validation_or_prediction_inside_a_fit_changes_nothing(runner, batches, job, point, distance):
    def fit(*callbacks):
        """Return the visible results of a fit with shuffling, dropout, a frozen module, metrics and windows."""
        seen = []

        class Look(Callback):
            def on_train_iter_end(self, run, loss):
                seen.append((run.mode, run.epoch, run.step, run.iteration, run.samples, run.batch_idx, loss.item()))

            def on_epoch_end(self, run, logs):
                seen.append((dict(logs), run.val_loader is val, run.train_loader is train))

        model, train, val = frozen(), shuffled(batches), shuffled(batches)
        one = runner(*callbacks, Look(), model=model, seed=3, metrics={"far": distance}, accumulate=2)
        for callback in callbacks:
            callback.runner = one
        run = one.fit(train, val, epochs=2)
        seen.append((dict(run.metrics), run.monitors.get_history("val_loss"), run.monitors.get_history("far")))
        seen.append((random.random(), np.random.rand(), torch.rand(1).item()))
        return seen, [part.training for part in model.modules()], weights(model), model[1].running_mean.tolist()

    during = During(point, JOBS[job], shuffled(batches[:3]))
    alone, disturbed = fit(), fit(during)
    assert during.results
    assert disturbed[:2] == alone[:2]
    assert same(disturbed[2], alone[2])
    assert disturbed[3] == alone[3]


def test_a_validation_inside_a_fit_returns_the_same_values_as_outside(runner, batches):
    results = []

    @on("on_epoch_end")
    def test(run):
        results.append(one.validate(batches[:2]))
        run.stop("after it, there are still numbers")
        results.append(one.validate(batches[:2]))
        results.append(len(one.predict(batches[:2])))

    one = runner(test)
    run = one.fit(batches, epochs=3)
    outside = one.validate(batches[:2])
    assert results == [outside, outside, 2]
    assert run.epoch == 1
    assert "val_loss" not in run.metrics


@pytest.mark.parametrize("job", ["validate", "predict"])
def test_a_failed_validation_or_prediction_leaves_the_run_unchanged(runner, batches, job, distance):
    class Flaky(Callback):
        on_error = "warn"

        def on_train_iter_end(self, run):
            if run.step in (2, 3):
                getattr(one, job)([batches[0], (torch.ones(4, 9), torch.ones(4, 2))])

    class Look(Callback):
        def on_train_iter_end(self, run):
            seen.append((run.mode, run.step, run.model.training))

        def on_val_epoch_end(self):
            seen.append("a pass that failed has no end")

        on_pred_epoch_end = on_val_epoch_end

    seen = []
    one, other = runner(Flaky(), Look(), metrics={"far": distance}), runner()
    run = one.fit(batches, epochs=1)
    other.fit(batches, epochs=1)
    assert seen == [("train", step, True) for step in range(1, 6)]
    assert same(weights(one.model), weights(other.model))
    assert set(run.metrics) == {"loss", "far", "learning_rate"}


def test_stop_run_in_a_validation_ends_it_normally(runner, batches):
    def stop():
        raise StopRun("enough")

    points = Points("on_val_epoch", "on_epoch", "on_exception")
    run = runner(points, LambdaCallback(on_val_iter_end=stop)).fit(batches, batches, epochs=2)
    assert points.seen == ["epoch_begin", "val_epoch_begin", "val_epoch_end", "epoch_end"]
    assert not run.epoch_complete


# Modes


def frozen():
    """A model in train mode with normalization in eval mode."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[1].eval()
    return model


@pytest.mark.parametrize("job", ["fit", "validate", "predict", "predict_iter"])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_train_and_eval_modes_are_restored(runner, batches, job, fails, grad):
    def fail(run):
        if fails and run.batch_idx == 1:
            raise ValueError("no")

    one = runner(LambdaCallback(on_iter_end=fail), model=frozen())
    jobs = {
        "fit": lambda: one.fit(batches, batches, epochs=1),
        "validate": lambda: one.validate(batches),
        "predict": lambda: one.predict(batches),
        "predict_iter": lambda: list(one.predict_iter(batches)),
    }
    statistics = one.model[1].running_mean.clone()
    with torch.set_grad_enabled(grad):
        if fails:
            with pytest.raises(ValueError, match="no"):
                jobs[job]()
        else:
            jobs[job]()
        assert torch.is_grad_enabled() == grad
    assert [part.training for part in one.model] == [True, False, True, True]
    assert one.model.training
    assert torch.equal(one.model[1].running_mean, statistics)


def test_a_model_in_eval_mode_is_trained_and_restored(runner, batches):
    seen = []
    one = runner(LambdaCallback(on_train_iter_end=lambda run: seen.append(run.model.training)), model=frozen().eval())
    statistics = one.model[1].running_mean.clone()
    one.fit(batches, epochs=1)
    assert seen == [True] * 5
    assert not any(part.training for part in one.model.modules())
    assert not torch.equal(one.model[1].running_mean, statistics)


# Ctrl-C


# A process that sends itself SIGINT in training and in validation, once and twice, and reports what happens. One process for
# all cases: importing torch takes longer than the rest.
PROGRAM = """
import os, signal
import torch
from hookpoint import Callback
from hookpoint.engine.runner import Runner

def say(*words):
    print(*words, flush=True)

class Interrupt(Callback):
    def __init__(self, where, times):
        self.where, self.times = where, times

    def send(self, run, where):
        if where == self.where and run.batch_idx == 1:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)

    def on_backward_end(self, run): self.send(run, "training")
    def on_val_iter_begin(self, run): self.send(run, "validation")
    def on_train_iter_end(self, run): say("step", run.step)
    def on_val_iter_end(self, run): say("val", run.batch_idx)
    def on_trigger(self): say("triggered")
    def on_epoch_end(self, run): say("epoch end", run.epoch_complete, *sorted(run.metrics))
    def on_exception(self, error): say("exception", type(error).__name__)
    def on_run_end(self, run): say("run end", run.step)

def fit(where, times):
    say("#", where, times)
    model = torch.nn.Linear(3, 2).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.ones(4, 3), torch.ones(4, 2))] * 3
    try:
        Runner(model, optimizer, torch.nn.MSELoss(), callbacks=[Interrupt(where, times)]).fit(batches, batches, epochs=2)
    finally:
        say("put back", not model.training, signal.getsignal(signal.SIGINT) is signal.default_int_handler)

torch.set_num_threads(1)
for where, times in [("training", 1), ("training", 2), ("validation", 1)]:
    try:
        fit(where, times)
    except KeyboardInterrupt:
        say("KeyboardInterrupt")
fit("validation", 2)
"""


def test_ctrl_c_finishes_the_step_and_a_second_ctrl_c_does_not():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=250, check=False)
    assert ended.returncode == -signal.SIGINT
    assert "\nKeyboardInterrupt\n" in ended.stderr
    assert ended.stdout.splitlines() == [
        *["# training 1", "step 1", "step 2", "epoch end False learning_rate loss", "run end 2"],
        *["put back True True", "KeyboardInterrupt"],
        *["# training 2", "step 1", "exception KeyboardInterrupt", "run end 1"],
        *["put back True True", "KeyboardInterrupt"],
        *["# validation 1", "step 1", "step 2", "step 3", "val 0", "val 1"],
        *["epoch end False learning_rate loss val_loss", "run end 3"],
        *["put back True True", "KeyboardInterrupt"],
        *["# validation 2", "step 1", "step 2", "step 3", "val 0", "exception KeyboardInterrupt", "run end 3"],
        *["put back True True"],
    ]


# run.hyper


def grouped(optimizer, **options):
    """Return a model, and an optimizer with two parameter groups."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, optimizer([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], **options)


def in_training(model, optimizer, batches, action):
    done = []

    @on("on_train_iter_end", when=Once(steps=2))
    def act(run):
        action(run.hyper)
        done.append(True)

    Runner(model, optimizer, mse, callbacks=[act]).fit(batches, epochs=1)
    assert done == [True]


def test_settings_of_a_real_optimizer_are_read_and_set_by_name(batches):
    def act(hyper):
        assert (hyper["learning_rate"], hyper["lr@1"], hyper["momentum"]) == (0.1, 0.5, 0.9)
        hyper["learning_rate"] = 0.01
        hyper["lr@0"] = 0.02
        hyper["momentum"] = 0.5
        hyper["weight_decay@1"] = 0.1

    model, optimizer = grouped(torch.optim.SGD, lr=0.1, momentum=0.9)
    in_training(model, optimizer, batches, act)
    found = [(group["lr"], group["momentum"], group["weight_decay"]) for group in optimizer.param_groups]
    assert found == [(0.02, 0.5, 0), (0.05, 0.5, 0.1)]  # the second group has five times the rate of the first


def test_betas_and_a_tensor_learning_rate_can_be_set(batches):
    def act(hyper):
        assert hyper["betas"] == (0.9, 0.999)
        hyper["betas"] = (0.8, 0.9)
        hyper["lr@0"] = 0.02

    rate = torch.tensor(0.1)
    model, optimizer = grouped(torch.optim.AdamW, lr=rate)
    in_training(model, optimizer, batches, act)
    assert [group["betas"] for group in optimizer.param_groups] == [(0.8, 0.9)] * 2
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.02)


def test_a_new_learning_rate_applies_from_the_next_step(net, batches):
    model, optimizer = net()
    other, by_hand = net()
    in_training(model, optimizer, batches, lambda hyper: hyper.update(lr=0.0))
    Runner(other, by_hand, mse).fit(batches[:2], epochs=1)
    assert same(weights(model), weights(other))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("lr", value) for value in (float("nan"), float("inf"), -float("inf"), "0.1", None, True, torch.tensor([0.1, 0.2]))],
        *[("betas", value) for value in (0.9, (0.9,), (0.9, float("nan")), ("a", "b"))],
    ],
)
def test_an_invalid_setting_raises_and_changes_nothing(batches, name, value):
    def act(hyper):
        with pytest.raises(BadValue, match=name):
            hyper[name] = value

    model, optimizer = grouped(torch.optim.AdamW, lr=0.1)
    before = [{**group, "params": None} for group in optimizer.param_groups]
    in_training(model, optimizer, batches, act)
    assert [{**group, "params": None} for group in optimizer.param_groups] == before


def test_an_attribute_of_the_model_can_be_a_setting(batches):
    def act(hyper):
        hyper.register(ObjAttrParam(model[1], "p", name="dropout"))
        assert hyper["dropout"] == 0.5
        hyper["dropout"] = 0.25
        with pytest.raises(BadValue, match="dropout must be a finite number"):
            hyper["dropout"] = "much"
        with pytest.raises(UnknownSetting, match=r"there is no setting 'momentun'.\n  known     .*dropout.*lr.*momentum"):
            hyper["momentun"] = 0.5

    model = noisy()
    in_training(model, torch.optim.SGD(model.parameters(), lr=0.1), batches, act)
    assert model[1].p == 0.25


# Orca's names


def test_the_run_has_orcas_names(net, batches):
    class Look(Callback):
        def before_run(self, runner):
            assert runner.num_epochs == 1
            assert (runner.rank, runner.size, runner.logger.name) == (0, 1, "hookpoint")
            assert (runner.train_loader, runner.val_loader) == (batches, val)
            assert runner.models == [model]
            assert runner.optimizers == [runner.optimizer] == [optimizer]
            assert runner.schedulers == [runner.scheduler] == [scheduler]
            assert runner.criterion is mse

        def after_train_iter(self, runner):
            assert runner.global_step == runner.batch_idx + 1
            assert runner.output is runner.outputs
            assert runner.target is runner.batch[1]
            assert runner.metrics_stats == {"train_loss": runner.loss, "num_samples": 4}
            runner.put("steps", runner.global_step)

        def after_val_iter(self, runner):
            assert runner.target is runner.batch[1]

        def on_epoch_end(self, runner):
            assert set(runner.epoch_stats) == {"loss", "val_loss", "learning_rate"}
            seen.append(runner.get("steps"))

    seen, val = [], batches[:2]
    model, optimizer = net()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    Runner(model, optimizer, mse, lr_scheduler=scheduler, callbacks=[Look()]).fit(batches, val, epochs=1)
    assert seen == [5]


def test_a_main_callback_may_set_output_and_target(runner, batches, distance):
    class Main(MainCallback):
        def on_iter_forward(self, runner):
            features, target = runner.batch
            runner.output = runner.model(features)
            runner.target = target
            runner.loss = runner.criterion(runner.output, target)

    one, other = (runner(*main, metrics={"far": distance}) for main in ([Main()], []))
    assert one.validate(batches) == other.validate(batches)


def test_a_metric_that_is_read_but_never_logged_raises_after_one_epoch(runner, batches, caplog):
    class Reads(Callback):
        reads = ("accuracy",)

        def on_epoch_end(self): ...

    with pytest.raises(MissingMetric, match="Reads reads 'accuracy', which nothing has logged"):
        runner(Reads()).fit(batches, epochs=50)
    assert runner(Reads()).fit(batches, epochs=1).epoch == 1
    assert "Reads reads 'accuracy'" in caplog.text
    assert set(runner(Reads()).validate(batches)) == {"val_loss"}


def test_validate_every_with_a_number_raises(runner, batches):
    with pytest.raises(BadLoop) as caught:
        runner().fit(batches, batches, epochs=1, validate_every=2)
    assert str(caught.value) == (
        "validate_every must be a schedule, got 2.\n  write     validate_every=Every(epochs=2), or Every(steps=...)"
    )


# Arguments of a Runner


class TwoSteps:
    """An optimizer without parameter groups."""

    def step(self): ...


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"criterion": nn.MSELoss}, "criterion must be an instance, got the class MSELoss.\n  write     criterion=MSELoss()"),
        (
            {"criterion": "mse"},
            (
                "criterion must be callable, got 'mse'.\n"
                "  give      a function (outputs, targets) -> loss, such as torch.nn.CrossEntropyLoss()"
            ),
        ),
        ({"model": nn.Linear}, "model must be an instance, got the class Linear.\n  write     model=Linear(...)"),
        (
            {"optimizer": torch.optim.SGD},
            "optimizer must be an instance, got the class SGD.\n  write     optimizer=SGD(model.parameters(), lr=0.1)",
        ),
        (
            {"optimizer": [torch.optim.SGD([torch.zeros(1)], lr=0.1)]},
            (
                "optimizer must be one object or a dict of objects, got a list.\n"
                '  write     a dict, {"body": ..., "head": ...}, and main=a MainCallback that uses each of them\n'
                "  give      or the object itself, if there is only one"
            ),
        ),
        (
            {"optimizer": 0.1},
            "optimizer must have a step method, got 0.1.\n  give      torch.optim.SGD(model.parameters(), lr=0.1)",
        ),
        (
            {"lr_scheduler": torch.optim.lr_scheduler.StepLR},
            "lr_scheduler must be an instance, got the class StepLR.\n  write     lr_scheduler=StepLR(optimizer, ...)",
        ),
        (
            {"lr_scheduler": "cosine"},
            (
                "lr_scheduler must have a step method, got 'cosine'.\n"
                "  give      torch.optim.lr_scheduler.StepLR(optimizer, ...)"
            ),
        ),
        (
            {"lr_scheduler": {"body": "cosine"}},
            (
                "lr_scheduler must have a step method, got 'cosine'.\n"
                "  give      torch.optim.lr_scheduler.StepLR(optimizer, ...)"
            ),
        ),
    ],
)
def test_invalid_arguments_raise_when_the_runner_is_created(net, given, message):
    model, optimizer = net()
    with pytest.raises(BadLoop) as caught:
        Runner(**{"model": model, "optimizer": optimizer, "criterion": mse, **given})
    assert str(caught.value) == message


@pytest.mark.parametrize("by_name", [False, True])
def test_a_scheduler_of_another_optimizer_raises(net, by_name):
    (model, optimizer), (_, other) = net(), net()
    scheduler = torch.optim.lr_scheduler.StepLR(other, 1)
    with pytest.raises(BadLoop) as caught:
        Runner(model, {"a": optimizer} if by_name else optimizer, mse, lr_scheduler={"a": scheduler} if by_name else scheduler)
    assert str(caught.value) == (
        "the lr_scheduler StepLR was created for a different optimizer.\n"
        "  write     optimizer=optimizer, lr_scheduler=StepLR(optimizer, ...)"
    )


def test_a_scheduler_may_belong_to_a_wrapped_optimizer(net, batches):
    class Wrapper:
        def __init__(self, inner):
            self.inner, self.step, self.zero_grad = inner, inner.step, inner.zero_grad

        @property
        def param_groups(self):
            return list(self.inner.param_groups)

    class Copies(Wrapper):
        @property
        def param_groups(self):
            return [dict(group) for group in self.inner.param_groups]

    class Slots:
        __slots__ = ("inner", "step", "zero_grad")
        __init__, param_groups = Wrapper.__init__, Copies.param_groups

    for wrapper in (Wrapper, Copies, Slots):
        model, optimizer = net()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        assert Runner(model, wrapper(optimizer), mse, lr_scheduler=scheduler).fit(batches, epochs=1).step == 5


def test_a_scheduler_may_be_for_an_optimizer_of_the_main_callback(net, batches):
    (model, optimizer), (critic, own) = net(), net()

    class TwoSteps(MainCallback):
        def on_iter_backward(self, run):
            own.zero_grad()
            mse(critic(run.batch[0]), run.batch[1]).backward()
            own.step()
            run.backward()
            run.optimizer_step()

    schedulers = {"own": torch.optim.lr_scheduler.StepLR(own, 1, gamma=0.5)}
    rate = own.param_groups[0]["lr"]
    Runner(model, optimizer, mse, lr_scheduler=schedulers, main=TwoSteps()).fit(batches, epochs=1)
    assert own.param_groups[0]["lr"] == rate / 2


def test_an_optimizer_that_needs_a_closure_requires_a_main_callback(net, batches):
    class Closure(MainCallback):
        def on_iter_forward(self, run):
            run.loss = mse(run.model(run.batch[0]), run.batch[1])

        def on_iter_backward(self, run):
            def closure():
                run.optimizer.zero_grad()
                loss = mse(run.model(run.batch[0]), run.batch[1])
                loss.backward()
                return loss

            run.optimizer.step(closure)

    model, _ = net()
    optimizer = torch.optim.LBFGS(model.parameters())
    before = weights(model)
    with pytest.raises(BadLoop) as caught:
        Runner(model, optimizer, mse).fit(batches, epochs=1)
    assert str(caught.value) == (
        "LBFGS needs a closure: it computes the loss multiple times per step, but the default step computes it once.\n"
        "  write     main=a MainCallback whose on_iter_backward calls run.optimizer.step(closure)"
    )
    assert same(weights(model), before)
    assert Runner(model, optimizer, main=Closure()).fit(batches, epochs=2).step == 10
    with pytest.raises(BadLoop, match=r"^TwoSteps has no param_groups"):
        Runner(model, TwoSteps(), mse).fit(batches, epochs=1)


# The prefix of a validation


def test_validate_accepts_another_prefix(runner, batches, distance, recorder):
    def names(run):
        run.log({"val/far": 2.0, "validation_far": 3.0})

    records = recorder()
    one = runner(on("on_val_iter_end")(names), records, metrics={"far": distance})
    expected = runner(metrics={"far": distance}).validate(batches)
    found = one.validate(batches, prefix="test")
    assert found == {
        "test_loss": expected["val_loss"],
        "test_far": expected["val_far"],
        "test/far": 2.0,
        "test_validation_far": 3.0,
    }
    assert [set(scalars) for _, _, scalars in records.rows] == [set(found)]
    assert one.validate(batches, prefix="test/")["test/loss"] == expected["val_loss"]
    assert set(one.validate(batches)) == {"val_loss", "val_far", "val/far", "validation_far"}


def test_a_validation_with_another_prefix_does_not_affect_the_fit(runner, batches):
    found = []

    @on("on_epoch_end")
    def test(run):
        found.append(one.validate(batches, prefix="test"))

    one = runner(test)
    run = one.fit(batches, batches, epochs=1)
    assert found == [{"test_loss": run.metrics["val_loss"]}]
    assert "test_loss" not in run.metrics


@pytest.mark.parametrize("prefix", ["", None, 3])
def test_an_invalid_prefix_raises(runner, batches, prefix):
    with pytest.raises(BadLoop) as caught:
        runner().validate(batches, prefix=prefix)
    assert str(caught.value) == f'prefix must be a non-empty string, got {prefix!r}.\n  write     prefix="test"'


def test_validate_warns_if_nothing_is_measured(runner, batches, caplog):
    one = runner(criterion=None)
    assert one.validate(batches) == one.validate(batches, prefix="test") == {}
    line = "validate has no results: pass criterion=... or metrics={...} to the Runner, or log values in callbacks"
    assert caplog.messages == [line, line]


def test_validate_does_not_warn_if_anything_is_measured(runner, batches, distance, caplog):
    log = LambdaCallback(on_val_epoch_end=lambda run: run.log(extra=1))
    assert runner(log, criterion=None).validate(batches) == {"val_extra": 1.0}
    assert runner(criterion=None, metrics={"far": distance}).validate(batches).keys() == {"val_far"}
    skip = LambdaCallback(on_val_iter_begin=lambda run: run.skip_batch())
    assert runner(skip).validate(batches) == {}
    assert caplog.messages == []
