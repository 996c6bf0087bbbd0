from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hookpoint
from hookpoint import Callback, Every, Runner
from hookpoint.callbacks import EarlyStopping, MinSaver, ModelSaver
from hookpoint.callbacks.stopping.early_stopping import Patience
from hookpoint.core.errors import BadArgument, BadLoop, MissingMetric
from hookpoint.core.loop.loop import Loop

NAN = math.nan


class Model:
    """A model whose weight is the epoch it was last trained in."""

    def __init__(self):
        self.weight = 0

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"]


class Stops(Callback):
    def __init__(self):
        self.reasons = []

    def on_records(self, records):
        self.reasons += [record.values["stop"]["reason"] for record in records if "stop" in record.values]


@pytest.fixture
def train_until_stopped(train):
    """Run an epoch for each value of val_loss (None: nothing is logged) until the run is stopped; return the run."""

    def go(callback, losses, others=(), *, model=None, epochs=None, **given):
        model = model or Model()
        rows = [{} if loss is None else {"val_loss": loss} for loss in losses[:epochs]]
        step = lambda run, batch: setattr(model, "weight", run.epoch)  # noqa: E731
        return train([callback, *others], rows, batches=2, step=step, model=model, **given)

    return go


def test_the_first_value_without_improvement_stops_the_run(train_until_stopped):
    assert train_until_stopped(EarlyStopping(), [3.0, 2.0, 1.0, 1.0, 0.5]).epoch == 4
    assert train_until_stopped(EarlyStopping(), [3.0, 2.0, 1.0]).epoch == 3


def test_patience_allows_values_without_improvement(train_until_stopped):
    assert train_until_stopped(EarlyStopping(patience=2), [3.0, 2.0, 2.0, 1.0, 1.0, NAN, 0.5]).epoch == 6


def test_min_delta_can_be_relative_to_the_best_value(train_until_stopped):
    losses = [100.0, 98.0, 96.0, 95.5, 95.3]
    assert train_until_stopped(EarlyStopping(min_delta=0.01, min_delta_mode="rel"), losses).epoch == 4
    assert train_until_stopped(EarlyStopping(min_delta=0.01), losses).epoch == 5
    assert train_until_stopped(EarlyStopping(min_delta=1.0), losses).epoch == 4
    small = [loss / 1000 for loss in losses]
    assert train_until_stopped(EarlyStopping(min_delta=0.01, min_delta_mode="rel"), small).epoch == 4
    assert train_until_stopped(EarlyStopping(min_delta=0.01), small).epoch == 2


def test_relative_min_delta_handles_infinite_and_negative_best_values(train_until_stopped):
    callback = EarlyStopping(min_delta=0.1, min_delta_mode="rel")
    assert train_until_stopped(callback, [math.inf, 5.0, -1.0, -1.2, -1.25]).epoch == 5
    assert callback.best.value == -1.2


def test_an_unknown_min_delta_mode_raises():
    with pytest.raises(BadArgument) as caught:
        EarlyStopping(min_delta_mode="relative")
    assert str(caught.value) == "EarlyStopping: min_delta_mode must be 'abs' or 'rel', got 'relative'."


@pytest.mark.parametrize(("mode", "sign"), [("min", 1), ("max", -1)])
def test_an_infinite_first_value_is_improved_by_a_finite_value(train_until_stopped, mode, sign):
    losses = [sign * value for value in (math.inf, math.inf, 5.0, 4.0)]
    callback = EarlyStopping(patience=2, mode=mode)
    assert train_until_stopped(callback, losses).epoch == 4
    assert not callback.stopped
    assert train_until_stopped(EarlyStopping(patience=1, mode=mode), losses).epoch == 2


def test_only_new_values_count(train_until_stopped):
    assert train_until_stopped(EarlyStopping(patience=2), [2.0, None, None, 2.0, None, 2.0, 2.0]).epoch == 6


def test_start_from_epoch_ignores_the_first_epochs(train_until_stopped):
    callback = EarlyStopping(start_from_epoch=2)
    assert train_until_stopped(callback, [1.0, 5.0, 4.0, 3.0, 3.0, 2.0]).epoch == 5
    assert callback.best.value == 3.0


def test_the_default_mode_comes_from_the_metric_name():
    with Loop([EarlyStopping("accuracy")]) as run:
        for epoch in run.epochs(5):
            run.log(accuracy=[0.1, 0.2, 0.3, 0.2, 0.4][epoch - 1])
    assert run.epoch == 4


def test_values_must_beat_the_baseline(train_until_stopped):
    assert train_until_stopped(EarlyStopping(baseline=2.0, patience=2), [5.0, 4.0, 3.0]).epoch == 2
    assert train_until_stopped(EarlyStopping(baseline=2.0, min_delta=0.5, patience=2), [1.75, 1.375, 1.0, 0.75]).epoch == 4


@pytest.mark.parametrize("epochs", [4, 6])
def test_the_best_weights_are_restored_even_if_they_miss_the_baseline(train_until_stopped, epochs):
    model, callback = Model(), EarlyStopping(patience=5, baseline=0.5, restore_best_weights=True)
    run = train_until_stopped(callback, [0.9, 0.8, 0.7, 0.71, 0.72, 0.73], model=model, epochs=epochs)
    assert run.epoch == min(epochs, 5)
    assert model.weight == 3


def test_a_schedule_stops_the_run_within_an_epoch():
    with Loop([EarlyStopping("val_loss", patience=2).when(Every(steps=1))]) as run:
        for _ in run.batches(range(20)):
            for _ in run.batches(range(1), mode="val"):
                run.log(loss=max(5 - run.step, 2))
    assert run.step == 6


def test_the_reason_contains_the_best_value_and_the_patience(train_until_stopped, capsys):
    stops = Stops()
    callback = EarlyStopping(patience=2, verbose=1)
    train_until_stopped(callback, [3.0, 2.5, 2.5, 2.75], [stops])
    reason = "EarlyStopping(val_loss): no improvement over 2.5 (step 4) in 2 values"
    assert stops.reasons == [reason]
    assert callback.stopped
    assert capsys.readouterr().err == f"epoch 4: {reason}\n"


def test_the_reason_for_a_metric_that_is_always_nan_has_no_best_value(train_until_stopped):
    stops = Stops()
    train_until_stopped(EarlyStopping(), [NAN], [stops])
    assert stops.reasons == ["EarlyStopping(val_loss): no improvement in 1 value"]


def test_a_second_run_starts_from_scratch(train_until_stopped):
    callback = EarlyStopping(patience=1)
    assert train_until_stopped(callback, [0.5, 0.5]).epoch == 2
    assert train_until_stopped(callback, [3.0, 2.0, 1.0]).epoch == 3
    assert callback.best.value == 1.0


# Resuming

LOSSES = [4.0, 3.0, 3.0, NAN, 2.0, 2.0, 2.5, 3.0, 1.0]


@pytest.mark.parametrize("cut", range(1, 8))
@pytest.mark.parametrize("restores", [False, True])
def test_a_resumed_run_stops_where_an_uninterrupted_run_does(train_until_stopped, disk, cut, restores):
    def make():
        return EarlyStopping(patience=3, restore_best_weights=restores)

    models = Model(), Model()
    assert train_until_stopped(make(), LOSSES, model=models[0]).epoch == 8
    train_until_stopped(make(), LOSSES[:cut], [ModelSaver()], store=disk)
    assert train_until_stopped(make(), LOSSES, [ModelSaver()], store=disk, model=models[1]).epoch == 8
    assert models[0].weight == models[1].weight == (5 if restores else 8)


def test_a_stopped_run_stops_again_when_resumed(train_until_stopped, disk, caplog):
    train_until_stopped(EarlyStopping(patience=1), [2.0, 2.0, 1.0], [ModelSaver()], store=disk)
    model, again = Model(), EarlyStopping(patience=1)
    run = train_until_stopped(again, [2.0, 2.0, 1.0, 1.0], [ModelSaver()], store=disk, model=model)
    assert (run.epoch, run.step, model.weight) == (2, 4, 2)
    assert caplog.messages[-1].startswith("EarlyStopping(val_loss): no improvement over 2")
    assert caplog.messages[-1].endswith(". The run was already stopped for this reason; raise patience to resume it")


def test_a_stopped_run_continues_with_more_patience(train_until_stopped, disk):
    train_until_stopped(EarlyStopping(patience=1), [2.0, 2.0, 1.0], [ModelSaver()], store=disk)
    assert train_until_stopped(EarlyStopping(patience=2), [2.0, 2.0, 1.0], [ModelSaver()], store=disk).epoch == 3


def test_a_run_stopped_within_an_epoch_stops_again_when_resumed(disk):
    def go():
        callback = EarlyStopping("val_loss", patience=2).when(Every(steps=1))
        with Loop([callback, ModelSaver()], store=disk) as run:
            for _ in run.epochs(2):
                for _ in run.batches(range(20)):
                    for _ in run.batches(range(1), mode="val"):
                        run.log(loss=max(5 - run.step, 2))
        return run.step

    assert go() == go() == 6


# Best weights


@pytest.mark.parametrize("losses", [[3.0, 1.0, 2.0, 2.0, 2.0, 0.5], [3.0, 1.0, 2.0]])
def test_the_best_weights_are_restored_at_the_end_of_the_run(train_until_stopped, losses):
    model = Model()
    train_until_stopped(EarlyStopping(patience=3, restore_best_weights=True), losses, model=model)
    assert model.weight == 2


def test_without_a_best_value_the_last_weights_are_kept(train_until_stopped):
    model = Model()
    train_until_stopped(EarlyStopping(patience=3, restore_best_weights=True), [NAN, NAN], model=model)
    assert model.weight == 2


def test_weights_are_not_restored_after_an_exception():
    model = Model()
    with pytest.raises(ZeroDivisionError), Loop([EarlyStopping(patience=9, restore_best_weights=True)], model=model) as run:
        for epoch in run.epochs(3):
            for _ in run.batches(range(1)):
                model.weight = epoch
                1 / (3 - epoch)
            run.log(val_loss=float(epoch))
    assert model.weight == 3


def test_a_longer_run_resumes_from_the_last_weights(train_until_stopped, disk):
    """MinSaver saves only the best; the checkpoint at the end is written before the best weights are restored."""
    model = Model()
    train_until_stopped(
        EarlyStopping(patience=9, restore_best_weights=True), [1.0, 2.0, 3.0], [MinSaver("val_loss")], store=disk, model=model
    )
    assert model.weight == 1
    assert disk.saved[-1] == (6, ["end"])
    assert disk.states[6]["parts"]["model"] == {"weight": 3}


def test_a_finished_run_that_is_loaded_has_the_best_weights(train_until_stopped, disk):
    losses = [1.0, 2.0, 3.0]
    for _ in range(2):
        model = Model()
        train_until_stopped(
            EarlyStopping(patience=9, restore_best_weights=True), losses, [ModelSaver()], store=disk, model=model
        )
        assert model.weight == 1


def test_missing_best_weights_are_reported_after_a_resume(train_until_stopped, disk, caplog):
    losses, said = [1.0, 2.0, 3.0], "the checkpoint does not contain the best weights, from step 2"
    train_until_stopped(EarlyStopping(patience=9), losses, [ModelSaver()], store=disk, epochs=2)
    restoring = EarlyStopping(patience=9, restore_best_weights=True)
    train_until_stopped(restoring, losses, [ModelSaver()], store=disk)
    assert len([message for message in caplog.messages if said in message]) == 1


def test_a_metric_measured_at_an_earlier_step_is_reported(caplog):
    model = Model()
    with Loop([EarlyStopping("val_loss", restore_best_weights=True)], model=model) as run:
        for _ in run.epochs(2):
            for _ in run.batches(range(3)):
                if run.batch_idx == 1:
                    for _ in run.batches(range(1), mode="val"):
                        run.log(loss=1.0 / run.epoch)
    (said,) = caplog.messages
    assert said.startswith("'val_loss' was measured at step 1, but the run is at step 3: EarlyStopping(val_loss) stores")


def test_a_model_without_a_state_raises(train_until_stopped):
    with pytest.raises(BadLoop, match="needs a model with state_dict and load_state_dict"):
        train_until_stopped(EarlyStopping(restore_best_weights=True), [1.0], model=type("Bare", (), {"weight": 0})())


def test_a_runner_restores_the_weights_of_the_best_epoch_bitwise(tmp_path):
    torch.manual_seed(0)
    data = (torch.randn(32, 4), torch.randn(32, 1))
    kept = {}

    class Remember(Callback):
        def on_epoch_end(self, run):
            kept[run.step] = {name: value.clone() for name, value in run.model.state_dict().items()}

    def fit(epochs):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        callback = EarlyStopping("val_loss", patience=4, restore_best_weights=True)
        callbacks = [callback, ModelSaver(), Remember()]
        runner = Runner(
            model, optimizer, torch.nn.MSELoss(), callbacks=callbacks, monitors=[], extra_callbacks=[], workdir=tmp_path, seed=2
        )
        run = runner.fit(data, (data[0] + 0.5, data[1]), epochs=epochs, batch_size=8)
        return model, callback, run

    for epochs in (3, 40):  # the second run resumes from the checkpoint of the first
        model, callback, run = fit(epochs)
        best = kept[callback.best.step]
        assert all(torch.equal(value, best[name]) for name, value in model.state_dict().items())
    assert callback.stopped
    assert callback.best.step < run.step


# Errors


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"patience": -1}, "patience must be an integer >= 0, got -1"),
        ({"patience": 1.5}, "patience must be an integer >= 0, got 1.5"),
        ({"min_delta": -0.1}, "min_delta must be a finite number >= 0, got -0.1"),
        ({"baseline": NAN}, "baseline must be a finite number, got nan"),
        ({"start_from_epoch": -1}, "start_from_epoch must be an integer >= 0, got -1"),
        ({"mode": "least"}, "got 'least'"),
        ({"monitor": "thing"}, "is ambiguous"),
    ],
)
def test_invalid_arguments_raise(options, says):
    with pytest.raises(ValueError, match=says):
        EarlyStopping(**options)


def test_a_metric_that_is_never_logged_raises(train_until_stopped):
    with pytest.raises(MissingMetric, match=r"^EarlyStopping\(score\) reads 'score', which nothing has logged"):
        train_until_stopped(EarlyStopping("score", mode="min"), [3.0, 2.0])


def test_ignored_epochs_need_no_value():
    def last_epoch(logs_from):
        with Loop([EarlyStopping("acc", patience=9, start_from_epoch=4)]) as run:
            for epoch in run.epochs(7):
                if epoch >= logs_from:
                    run.log(acc=1.0)
        return run.epoch

    assert last_epoch(logs_from=5) == 7
    with pytest.raises(MissingMetric, match="by the end of epoch 5"):
        last_epoch(logs_from=6)


def test_a_resume_without_a_new_best_value_keeps_no_extra_checkpoints(tmp_path):
    model, values = torch.nn.Linear(1, 1), [0.5, 0.6, 0.7, 0.1, 0.1]

    def kept(workdir, *several):
        for epochs in several:
            callbacks = [ModelSaver(max_to_keep=1), EarlyStopping("acc", patience=9)]
            with hookpoint.Loop(callbacks, model=model, workdir=workdir, monitors=[], extra_callbacks=[]) as run:
                for epoch in run.epochs(epochs):
                    run.log(acc=values[epoch - 1])
        return sorted(path.name for path in (workdir / "checkpoints").iterdir())

    assert kept(tmp_path / "resumed", 3, 5) == kept(tmp_path / "whole", 5)


@pytest.mark.parametrize("ends_by", ["stop", "break"])
def test_the_last_checkpoint_has_the_last_weights_however_the_run_ends(tmp_path, ends_by):
    model = torch.nn.Linear(1, 1, bias=False)
    callbacks = [EarlyStopping("val_loss", patience=9, restore_best_weights=True), MinSaver("val_loss")]
    with hookpoint.Loop(callbacks, model=model, workdir=tmp_path, monitors=[], extra_callbacks=[]) as run:
        for epoch in run.epochs(9):
            value = [3.0, 1.0, 2.0][epoch - 1]
            model.weight.data.fill_(value)
            run.log(val_loss=value)
            if epoch == 3 and ends_by == "break":
                break
            if epoch == 3:
                run.stop("enough")
    assert model.weight.item() == 1.0
    assert hookpoint.load_weights(tmp_path / "checkpoints" / "last")["weight"].item() == 2.0


# Patience


INF = float("inf")


def end(patience, values):
    """Return the number of the value at which patience is over, or None."""
    for number, value in enumerate(values, 1):
        patience.take(value, number)
        if patience.is_over:
            return number
    return None


@pytest.mark.parametrize(
    ("options", "values", "over"),
    [
        ({}, [3.0, 2.0, 1.0], None),
        ({}, [3.0, 2.0, 2.0], 3),
        ({"patience": 1}, [3.0, 2.0, 2.0], 3),
        ({"patience": 2}, [3.0, 2.0, 2.0, 1.0, 1.0, 1.0], 6),
        ({"patience": 2}, [3.0, 2.0, 2.5, 2.25], 4),
        ({"min_delta": 0.5}, [3.0, 2.25, 1.5, 1.25], 4),
        ({"min_delta": 0.5}, [3.0, 2.5], 2),
        ({}, [0.0, 0.0], 2),
        ({}, [0.5, 0.0, -0.5], None),
        ({}, [NAN], 1),
        ({"patience": 2}, [NAN, NAN], 2),
        ({"patience": 2}, [NAN, 5.0, NAN, 4.0, NAN, NAN], 6),
        ({}, [INF, INF], 2),
        ({"patience": 2}, [INF, INF, 5.0, 4.0], None),
        ({"patience": 2}, [INF, INF, INF], 3),
        ({"patience": 2}, [NAN, INF, INF, 5.0], None),
        ({"patience": 2}, [5.0, INF, INF], 3),
        ({"patience": 2}, [-INF, -INF, -5.0], 3),
        ({"patience": 2, "min_delta": 0.5}, [INF, INF, 5.0, 4.0], None),
        ({"patience": 2, "baseline": 9.0}, [INF, INF, 5.0], 2),
        ({"patience": 2, "baseline": INF}, [INF, 5.0, 5.0, 4.0], None),
        ({"baseline": 2.0, "min_delta": 0.5, "patience": 2}, [1.75, 1.375, 1.0, 0.75], None),  # 1.375 is 0.5 below 2
        ({"baseline": 2.0}, [3.0, 1.0], 1),
        ({"baseline": 2.0}, [1.0, 0.5], None),
        ({"baseline": 2.0, "patience": 3}, [5.0, 4.0, 3.0], 3),  # always improving but never below the baseline
        ({"baseline": 2.0, "patience": 3}, [5.0, 4.0, 1.0, 1.0, 1.0, 1.0], 6),
        ({"baseline": 2.0, "min_delta": 0.5, "patience": 2}, [1.75, 1.5], 2),
        ({"baseline": 2.0, "min_delta": 0.5, "patience": 2}, [1.25, 1.0, 0.5], None),
    ],
)
def test_patience_is_over_after_too_many_values_without_improvement(options, values, over):
    assert end(Patience("min", **options), values) == over
    baseline = {"baseline": -options["baseline"]} if "baseline" in options else {}
    assert end(Patience("max", **{**options, **baseline}), [-value for value in values]) == over


def test_the_best_value_is_updated_even_without_progress():
    patience = Patience("min", 9, baseline=1.0)
    assert [patience.take(value, step) for step, value in enumerate([3.0, NAN, 2.0, 2.0])] == [True, False, True, False]
    assert (patience.best.value, patience.best.step) == (2.0, 2)


@given(st.lists(st.sampled_from([-INF, -1.0, 0.0, 0.5, 1.0, 2.0, INF])), st.integers(0, 3), st.sampled_from([0.0, 0.5]))
def test_patience_ends_where_keras_stops(values, patience, min_delta):
    best, wait, stopped = None, 0, None
    for number, value in enumerate(values, 1):  # on_epoch_end of Keras 3
        wait += 1
        if best is None or value + min_delta < best:
            best, wait = value, 0
        elif wait >= patience and number > 1:
            stopped = number
            break
    assert end(Patience("min", patience, min_delta=min_delta), values) == stopped
    assert end(Patience("max", patience, min_delta=min_delta), [-value for value in values]) == stopped


@pytest.mark.parametrize(("baseline", "progress"), [(None, 2.0), (2.5, 2.0), (1.0, None)])
def test_a_state_without_progress_is_loaded(baseline, progress):
    patience = Patience("min", 3, baseline=baseline)
    patience.load_state_dict({"best": {"value": 2.0, "step": 7}, "waited": 1})
    assert patience.state_dict()["progress"]["value"] == progress
    patience.take(0.5, 8)
    assert patience.waited == 0


@pytest.mark.parametrize("baseline", [None, 1.5])
@pytest.mark.parametrize("cut", range(7))
def test_the_state_restores_patience_completely(cut, baseline):
    values = [3.0, 2.0, NAN, 1.0, 1.0, 1.5, 0.5]
    first, second = Patience("min", 3, baseline=baseline), Patience("min", 3, baseline=baseline)
    end(first, values[:cut])
    second.load_state_dict(first.state_dict())
    for number, value in enumerate(values[cut:], cut + 1):
        first.take(value, number), second.take(value, number)
    assert first.state_dict() == second.state_dict()
