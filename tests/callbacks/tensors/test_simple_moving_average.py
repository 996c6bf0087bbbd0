from __future__ import annotations

import pickle

import pytest
import torch

from hookpoint import Every, Loop, Runner
from hookpoint.callbacks import History, JSONWriter, MinSaver, ModelSaver, SimpleMovingAverage
from hookpoint.core.errors import BadValue, NoTrigger
from hookpoint.monitors import read_scalars

VALUES = [0.1, 0.7, 0.30000000000000004, 1.1, 0.2, 0.9, 0.6, 1e-9, 12.3]


@pytest.fixture
def train_on_values(train_public):
    """Log the values, three per epoch; return the run."""

    def go(callbacks, *, values=VALUES, log=lambda value: value, **given):
        def step(run, batch):
            run.log(loss=log(values[3 * (run.epoch - 1) + batch]))

        return train_public(callbacks, epochs=len(values) // 3, step=step, **given)

    return go


def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


@pytest.mark.parametrize("window", [1, 2, 4, 9, 10])
def test_the_mean_of_each_window_is_logged(train_on_values, window):
    run = train_on_values([SimpleMovingAverage(["loss"], window)])
    expected = [(step, mean(VALUES[step - window : step])) for step in range(window, len(VALUES) + 1, window)]
    assert run.monitors.get_history("loss/SMA") == expected


def test_tensors_are_averaged_as_logged_even_if_they_change_later(train_on_values):
    running = torch.zeros(())
    run = train_on_values([SimpleMovingAverage(["loss"], 3)], log=lambda value: running.fill_(value))
    assert [value for _, value in run.monitors.get_history("loss/SMA")] == pytest.approx(
        [mean(VALUES[i : i + 3]) for i in (0, 3, 6)]
    )


def test_monitors_get_each_mean_at_its_step(train_on_values, tmp_path):
    train_on_values([SimpleMovingAverage("loss", 2)], monitors=[JSONWriter()], workdir=tmp_path, log_every=5)
    rows = [row for row in read_scalars(tmp_path / "scalars.jsonl") if "loss/SMA" in row]
    assert [(row["step"], row["loss/SMA"]) for row in rows] == [(step, mean(VALUES[step - 2 : step])) for step in (2, 4, 6, 8)]


def test_an_epoch_has_the_last_mean(train_on_values):
    history = History()
    train_on_values([SimpleMovingAverage("loss", 2)], monitors=[history])
    assert history.history["loss/SMA"] == [mean(VALUES[at - 2 : at]) for at in (2, 6, 8)]


def test_a_saver_can_monitor_the_mean(train_on_values, tmp_path):
    train_on_values([MinSaver("loss/SMA"), SimpleMovingAverage("loss", 3)], workdir=tmp_path)
    assert (tmp_path / "checkpoints" / "best-loss--SMA").is_dir()


def test_optimizer_steps_are_counted():
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    average = SimpleMovingAverage({"x": "batch/0", "bias": "bias.grad"}, 2)
    given = {"accumulate": 2, "extra_callbacks": [], "monitors": []}
    runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), callbacks=[average], **given)
    run = runner.fit([(torch.full((1, 1), float(x)), torch.zeros(1, 1)) for x in range(8)], epochs=1)
    assert run.monitors.get_history("x/SMA") == [(2, 2.0), (4, 6.0)]
    assert len(run.monitors.get_history("bias/SMA")) == 2


@pytest.mark.thin(6)
@pytest.mark.parametrize("cut_at", [5, 7, 8])
@pytest.mark.parametrize("window", [2, 4])
@pytest.mark.parametrize("log", [float, torch.tensor])
def test_a_resumed_run_has_exactly_the_same_means(train_on_values, cuts, cut_off, cut_at, window, log, tmp_path):
    def callbacks():
        return [SimpleMovingAverage(["loss"], window), ModelSaver().when(Every(steps=1) if window == 2 else Every(steps=3))]

    whole = train_on_values(callbacks(), log=log, workdir=tmp_path / "whole")
    with pytest.raises(cut_off):
        train_on_values([*callbacks(), cuts(cut_at)], log=log, workdir=tmp_path / "cut")
    again = train_on_values(callbacks(), log=log, workdir=tmp_path / "cut")
    assert again.monitors.get_history("loss/SMA") == whole.monitors.get_history("loss/SMA")


def test_an_average_added_to_a_resumed_run_skips_the_incomplete_window(train_on_values, tmp_path):
    train_on_values([ModelSaver()], workdir=tmp_path, values=VALUES[:3])
    run = train_on_values([ModelSaver(), SimpleMovingAverage("loss", 2)], workdir=tmp_path)
    assert run.monitors.get_history("loss/SMA") == [(step, mean(VALUES[step - 2 : step])) for step in (6, 8)]


def test_an_average_missing_for_some_steps_skips_the_incomplete_window(train_on_values, tmp_path):
    train_on_values([ModelSaver(), SimpleMovingAverage("loss", 4)], workdir=tmp_path, values=VALUES[:3])
    train_on_values([ModelSaver()], workdir=tmp_path, values=VALUES[:6])
    run = train_on_values([ModelSaver(), SimpleMovingAverage("loss", 4)], workdir=tmp_path, values=[*VALUES, *VALUES[:3]])
    assert run.monitors.get_history("loss/SMA") == [(12, mean([*VALUES, *VALUES[:3]][8:12]))]


def test_a_step_after_the_last_batch_is_resumed_exactly(tmp_path):
    """The length of a generator is unknown: the step with its last batch is made after it has ended."""

    class Data:
        def __iter__(self):
            return ((torch.full((1, 1), float(x)), torch.zeros(1, 1)) for x in range(3))

    def fit(epochs, workdir):
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1)
        given = {"accumulate": 2, "extra_callbacks": [], "monitors": [], "workdir": workdir}
        callbacks = [SimpleMovingAverage("loss", 3), ModelSaver()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Runner(model, optimizer, torch.nn.MSELoss(), callbacks=callbacks, **given).fit(Data(), epochs=epochs)

    whole = fit(4, tmp_path / "whole").monitors.get_history("loss/SMA")
    for epochs in (1, 2, 4):
        parts = fit(epochs, tmp_path / "parts").monitors.get_history("loss/SMA")
    assert parts == whole


def test_a_new_run_starts_with_an_empty_window(train_on_values, cuts, cut_off):
    average = SimpleMovingAverage("loss", 4)
    with pytest.raises(cut_off):
        train_on_values([average, cuts(3)])
    again = pickle.loads(pickle.dumps(average))
    for one in (average, again):
        assert train_on_values([one]).monitors.get_history("loss/SMA")[0] == (4, mean(VALUES[:4]))


def test_a_value_that_is_not_a_scalar_raises():
    loop = Loop([SimpleMovingAverage("outputs", 2)], extra_callbacks=[], monitors=[])
    with pytest.raises(BadValue, match=r"'outputs' has shape \(2,\)"), loop as run:
        for _ in run.batches([1]):
            run.outputs = torch.ones(2)


def test_setting_a_schedule_raises(train_on_values):
    with pytest.raises(NoTrigger):
        train_on_values([SimpleMovingAverage("loss", 2).when(Every(steps=1))])


@pytest.mark.parametrize("window", [0, -1, 2.0, True, None])
def test_an_invalid_window_raises(window):
    with pytest.raises(ValueError, match="an integer >= 1"):
        SimpleMovingAverage("loss", window)
