from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

import hookpoint
from hookpoint import Callback, Every, Loop, Runner
from hookpoint.callbacks import EarlyStopping, LearningRateScheduler, ModelSaver, StochasticWeightAveraging, SwapEMAWeights
from hookpoint.callbacks.weights.stochastic_weight_averaging import SWASchedule
from hookpoint.core.errors import BadData, BadLoop
from hookpoint.core.loop.host import Host
from hookpoint.core.loop.host_driver import HostDriver

INPUTS, TARGETS = torch.randn(24, 3, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 2
BATCHES = [(INPUTS[at : at + 4], TARGETS[at : at + 4]) for at in range(0, 24, 4)]


def make(norm=True):
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(4) if norm else nn.LayerNorm(4)
    model = nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def clones(state):
    return {name: value.detach().clone() for name, value in state.items()}


def same(one, other):
    return sorted(one) == sorted(other) and all(torch.equal(one[name], other[name]) for name in one)


class Watch(Callback):
    """Average with torch's AveragedModel, and record the rates and the weights seen by validation."""

    def __init__(self, model, optimizer, first):
        self.model, self.optimizer, self._first = model, optimizer, first
        self.average, self.rates, self.validated, self.trained = AveragedModel(model), [], {}, {}

    def on_step_begin(self, run):
        self.rates.append(self.optimizer.param_groups[0]["lr"])

    def on_train_epoch_end(self, run):
        if run.epoch >= self._first:
            self.average.update_parameters(self.model)
        self.trained = clones(self.model.state_dict())

    def on_val_iter_begin(self, run):
        self.validated[run.epoch] = clones(self.model.state_dict())

    def expected(self, data=BATCHES):
        module = copy.deepcopy(self.average.module)
        update_bn(data, module)
        return module.state_dict()


def fit(swa, *more, epochs=6, norm=True, first=4, given=None, data=BATCHES, **options):
    model, optimizer = given or make(norm)
    watch = Watch(model, optimizer, first)
    scheduler = options.pop("scheduler", None)
    options.setdefault("lr_scheduler", scheduler(optimizer) if scheduler else None)
    runner = Runner(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        callbacks=[swa, *more, watch],
        **{"extra_callbacks": [], "monitors": [], **options},
    )
    run = runner.fit(data, BATCHES[:2], epochs=epochs)
    return model, watch, run


def close(one, other):
    return sorted(one) == sorted(other) and all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


@pytest.mark.parametrize("norm", [True, False])
def test_the_model_ends_with_averages_and_their_batch_norm_statistics(norm):
    swa = StochasticWeightAveraging(4)
    model, watch, run = fit(swa, norm=norm)
    assert close(model.state_dict(), watch.expected())
    assert close(swa.weights(), watch.expected())
    assert swa.updates == 3
    assert not close(watch.trained, watch.expected())
    assert close(watch.validated[6], watch.expected())  # the last validation uses the averages
    assert not close(watch.validated[5], watch.expected())
    model.eval()
    loss = nn.functional.cross_entropy(model(INPUTS[:8]), TARGETS[:8]).item()
    assert run.metrics["val_loss"] == pytest.approx(loss, rel=1e-5)


def test_the_average_is_bitwise_that_of_a_plain_loop():
    states = []

    class Keeps(Callback):
        def on_train_epoch_end(self, run):
            states.append(clones(dict(run.model.named_parameters())))

    swa = StochasticWeightAveraging(4)
    fit(swa, Keeps())
    expected = clones(states[3])
    for number, state in enumerate(states[4:], start=1):
        for name, value in expected.items():
            value.lerp_(state[name], 1 / (number + 1))
    assert same(swa.state_dict()["averages"], expected)


def test_without_a_rate_training_is_bitwise_the_same():
    _, alone, _ = fit(LearningRateScheduler(lambda epoch, rate: rate))
    _, watch, _ = fit(StochasticWeightAveraging(4))
    assert same(alone.trained, watch.trained)


def test_start_can_be_a_share_of_the_epochs():
    swa = StochasticWeightAveraging(0.5)
    fit(swa)
    assert swa.updates == 3


# Learning rate


def test_the_rate_is_annealed_to_the_averaging_rate():
    _, watch, _ = fit(StochasticWeightAveraging(4, 0.1, anneal_epochs=2, anneal="linear"))
    assert watch.rates[:18] == [0.2] * 18
    assert watch.rates[18:24] == pytest.approx([0.15] * 6)
    assert watch.rates[24:] == [0.1] * 12


@pytest.mark.parametrize("on", ["epoch", "step"])
def test_the_averaging_rate_takes_over_from_a_scheduler(on, caplog):
    def scheduler(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    swa = StochasticWeightAveraging(4, 0.1, anneal_epochs=1)
    _, watch, _ = fit(swa, scheduler=scheduler, lr_scheduler_on=on)
    assert watch.rates[:18] == [0.2 * 0.5 ** (step if on == "step" else step // 6) for step in range(18)]
    assert watch.rates[18:] == [0.1] * 18
    assert "the last write wins" not in caplog.text


def test_another_callback_that_sets_the_rate_is_named(caplog):
    fit(StochasticWeightAveraging(4, 0.1), LearningRateScheduler(lambda epoch, rate: rate * 0.9))
    assert "both set learning_rate" in caplog.text
    assert "StochasticWeightAveraging" in caplog.text


def test_groups_are_annealed_from_their_own_rates():
    model, _ = make()
    groups = [{"params": model[0].parameters(), "lr": 0.4}, {"params": model[2].parameters(), "lr": 0.2}]
    optimizer, seen = torch.optim.SGD(groups), []

    class Notes(Callback):
        def on_epoch_begin(self, run):
            seen.append([group["lr"] for group in optimizer.param_groups])

    swa = StochasticWeightAveraging(2, 0.1, anneal_epochs=2, anneal="linear")
    fit(swa, Notes(), epochs=3, given=(model, optimizer))
    assert seen == [[0.4, 0.2], [0.25, pytest.approx(0.15)], [0.1, 0.1]]


# End of the run


def test_a_run_that_ends_before_the_first_average_warns(caplog):
    model, watch, _ = fit(StochasticWeightAveraging(9, 0.1))
    assert "the run ended without averages: no epoch from 9 onward was completed" in caplog.text
    assert same(model.state_dict(), watch.trained)


def test_a_stopped_run_ends_with_the_averages_so_far():
    class Stops(Callback):
        def on_epoch_end(self, run):
            if run.epoch == 5:
                run.stop("enough")

    model, watch, _ = fit(StochasticWeightAveraging(4), Stops())
    assert close(model.state_dict(), watch.expected())


def test_after_an_exception_the_model_has_the_training_weights():
    class Fails(Callback):
        def on_val_epoch_end(self, run):
            if run.epoch == 6:
                raise ValueError("mine")

    given = make()
    watch = Watch(*given, 4)
    with pytest.raises(ValueError, match="mine"):
        fit(StochasticWeightAveraging(4), Fails(), watch, given=given)
    assert same(given[0].state_dict(), watch.trained)


def test_an_epoch_cut_short_does_not_count():
    class Cuts(Callback):
        def on_train_iter_end(self, run):
            if run.epoch == 5 and run.batch_idx == 2:
                run.stop("enough")

    swa = StochasticWeightAveraging(4)
    fit(swa, Cuts())
    assert swa.updates == 1


def test_statistics_can_be_measured_on_other_data():
    swa = StochasticWeightAveraging(4, data=BATCHES[:3])
    model, watch, _ = fit(swa)
    assert close(model.state_dict(), watch.expected(BATCHES[:3]))


def test_an_exhausted_loader_is_reported(caplog):
    model, optimizer = make()
    swa = StochasticWeightAveraging(1)
    with Loop([swa], model=model, optimizer=optimizer, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            for inputs, targets in run.batches(iter(BATCHES)):
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    assert "no data to measure batch norm statistics with" in caplog.text


def own_loop(swa, data, call, *, norm=True):
    """Train with one step per batch, in a loop that calls the model itself."""
    model, optimizer = make(norm)
    with Loop([swa], model=model, optimizer=optimizer, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(2):
            for batch in run.batches(data):
                call(model, batch).sum().backward()
                optimizer.step()
    return run, model


@pytest.mark.parametrize(
    ("data", "found"),
    [([INPUTS], "Tensor"), ([{"x": INPUTS}], "dict"), ([(INPUTS, TARGETS, TARGETS)], "tuple of length 3")],
    ids=["tensor", "dict", "triple"],
)
def test_a_batch_that_cannot_be_measured_raises_at_the_first_step(data, found):
    steps = []
    with pytest.raises(BadData, match=rf"measure batch norm statistics: .* got {found}.\n  give +forward=lambda batch"):
        own_loop(StochasticWeightAveraging(1), data, lambda model, batch: steps.append(batch))
    assert steps == []


@pytest.mark.parametrize(("norm", "given"), [(False, {}), (True, {"data": BATCHES}), (True, {"forward": len})])
def test_a_batch_that_is_not_measured_can_have_any_form(norm, given):
    run, _ = own_loop(StochasticWeightAveraging(1, **given), [INPUTS], lambda model, batch: model(batch), norm=norm)
    assert run.step == 2


@pytest.mark.filterwarnings("ignore:this train pass has no batches")
def test_batches_that_cannot_be_read_again_may_have_any_form(caplog):
    run, _ = own_loop(StochasticWeightAveraging(1), iter([{"x": INPUTS}]), lambda model, batch: model(batch["x"]))
    assert run.step == 1
    assert "no data to measure batch norm statistics with" in caplog.text


def test_the_batches_of_another_trainer_may_have_any_form(caplog):
    model, _ = make()
    driver = HostDriver([swa := StochasticWeightAveraging(1)], Host("Trainer"))
    driver.start_run(model=model, epochs=1)
    driver.start_epoch()
    driver.start_pass("train", loader=[{"x": INPUTS}])
    assert driver.start_iteration({"x": INPUTS})
    driver.finish_iteration()
    driver.finish_pass()
    driver.finish_epoch()
    driver.finish_run()
    assert swa.updates == 1
    assert "no data to measure batch norm statistics with" in caplog.text


def test_a_runner_measures_its_training_batches():
    model, optimizer = make()
    runner = Runner(
        model, optimizer, main=lambda run: run.model(run.batch["x"]).sum(), callbacks=[swa := StochasticWeightAveraging(1)]
    )
    runner.fit([{"x": INPUTS}], epochs=1)
    assert swa.weights()["1.num_batches_tracked"] == 1


def test_failed_statistics_are_reported_and_the_run_ends_with_the_averages(caplog):
    swa = StochasticWeightAveraging(1)
    run, model = own_loop(swa, [(INPUTS.numpy(), 0)], lambda model, batch: model(torch.tensor(batch[0])))
    assert (run.step, swa.updates) == (2, 2)
    assert torch.equal(model[0].weight, swa.weights()["0.weight"])
    (line,) = caplog.messages
    assert line.startswith("StochasticWeightAveraging: batch norm statistics could not be measured (TypeError: ")
    assert line.endswith("of the training weights. Pass forward=..., a function that calls the model with a batch")


# Checkpoints


def test_the_last_checkpoint_has_training_weights_and_averages(tmp_path):
    swa = StochasticWeightAveraging(4, 0.1)
    model, watch, _ = fit(swa, ModelSaver(), workdir=tmp_path)
    assert same(hookpoint.load_weights(tmp_path), watch.trained)
    assert same(hookpoint.load_weights(tmp_path, averaged=True), model.state_dict())
    assert close(model.state_dict(), watch.expected())


def test_a_finished_run_that_is_started_again_has_the_averages(tmp_path):
    first, _, _ = fit(StochasticWeightAveraging(4), ModelSaver(), workdir=tmp_path)
    again, _, _ = fit(StochasticWeightAveraging(4), ModelSaver(), workdir=tmp_path)
    assert same(first.state_dict(), again.state_dict())


@pytest.mark.parametrize("start", [4, 0.5])
def test_a_run_extended_later_ends_like_a_run_of_full_length(start, tmp_path):
    fit(StochasticWeightAveraging(start, 0.1), ModelSaver(), workdir=tmp_path / "short")
    longer, _, _ = fit(StochasticWeightAveraging(start, 0.1), ModelSaver(), workdir=tmp_path / "short", epochs=8)
    whole, _, _ = fit(StochasticWeightAveraging(4, 0.1), ModelSaver(), workdir=tmp_path / "whole", epochs=8)
    assert same(longer.state_dict(), whole.state_dict())


@pytest.mark.thin(4)
@pytest.mark.parametrize("cut_at", [20, 27, 33, 36])
@pytest.mark.parametrize("on", ["epoch", "step"])
def test_an_interrupted_run_resumes_exactly(cut_at, on, cuts, cut_off, tmp_path):
    def train(folder, *more):
        swa = StochasticWeightAveraging(4, 0.1, anneal_epochs=3)
        options = {"scheduler": lambda one: torch.optim.lr_scheduler.ExponentialLR(one, 0.9), "lr_scheduler_on": on}
        saver = ModelSaver().when(Every(steps=5))
        model, watch, _ = fit(swa, saver, *more, workdir=folder, **options)
        return clones(model.state_dict()), watch.trained, swa.weights(), swa.state_dict()["averages"]

    whole = train(tmp_path / "whole")
    with pytest.raises(cut_off):
        train(tmp_path / "cut", cuts(cut_at))
    for mine, its in zip(train(tmp_path / "cut"), whole, strict=True):
        assert same(mine, its)


# Errors


def test_missing_objects_and_conflicts_raise_before_training():
    with pytest.raises(BadLoop, match="found no weights"), Loop([StochasticWeightAveraging(2)]):
        pass
    with pytest.raises(BadLoop, match="needs an optimizer"), Loop([StochasticWeightAveraging(2, 0.1)], model=make()[0]):
        pass
    with pytest.raises(BadLoop, match=r"both average this model.\n  drop"):
        fit(StochasticWeightAveraging(2), SwapEMAWeights())
    with pytest.raises(BadLoop, match="both replace the weights at the end of the run"):
        fit(StochasticWeightAveraging(2), EarlyStopping(restore_best_weights=True))


@pytest.mark.parametrize("given", [{"lr": -1.0}, {"lr": float("inf")}, {"start": 0}], ids=str)
def test_invalid_arguments_raise(given):
    with pytest.raises(ValueError, match=r"(lr|start) must be"):
        StochasticWeightAveraging(**given)
    with pytest.raises(TypeError, match="forward must be a function"):
        StochasticWeightAveraging(forward=3)


# SWASchedule


@pytest.mark.parametrize(
    ("start", "epochs", "first"),
    [
        *[(1, 9, 1), (7, None, 7), (0.75, 8, 7), (0.75, 10, 8), (0.99, 3, 3)],
        *[(0.58, 50, 30), (0.29, 100, 30), (0.57, 100, 58), (1 / 3, 3, 2), (0.9999999999, 50, 50)],
    ],
)
def test_the_first_epoch_depends_on_start(start, epochs, first):
    assert SWASchedule(start, 10, "cos").first_epoch(epochs) == first


def test_a_share_of_an_unknown_number_of_epochs_raises():
    with pytest.raises(BadLoop, match="needs a run with a known number of epochs"):
        SWASchedule(0.75, 10, "cos").first_epoch(None)


@pytest.mark.parametrize("anneal", ["cos", "linear"])
@pytest.mark.parametrize("anneal_epochs", [0, 1, 2, 5])
def test_the_rate_matches_that_of_swalr(anneal, anneal_epochs):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    theirs = SWALR(optimizer, swa_lr=0.05, anneal_epochs=anneal_epochs, anneal_strategy=anneal)
    schedule = SWASchedule(3, anneal_epochs, anneal)
    for epoch in range(3, 12):
        optimizer.step()
        theirs.step()
        assert schedule.rate(0.4, 0.05, epoch=epoch, first=3) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
    assert schedule.rate(0.4, 0.05, epoch=11, first=3) == 0.05


@pytest.mark.parametrize(
    "given",
    [{"start": 0}, {"start": 1.0}, {"start": 0.0}, {"start": True}, {"start": "2"}, {"anneal": "log"}, {"anneal_epochs": -1}],
    ids=str,
)
def test_an_invalid_schedule_raises(given):
    with pytest.raises(ValueError, match="must be"):
        SWASchedule(**{"start": 2, "anneal_epochs": 10, "anneal": "cos", **given})


def test_a_rate_for_several_optimizers_raises():
    models = [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    swa = StochasticWeightAveraging(start=1, lr=0.1)
    with (
        pytest.raises(BadLoop, match="cannot set the learning rates of 2 optimizers"),
        Loop([swa], model=models, optimizer=optimizers),
    ):
        pass
