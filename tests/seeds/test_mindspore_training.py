"""The callbacks of MindSpore's guide work in real training: four built-in callbacks, and two that users write."""

from __future__ import annotations

import re
import time

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookpoint import Callback, Runner, load_weights, save_checkpoint
from hookpoint.callbacks import CheckpointConfig, LossMonitor, ModelCheckpoint, SummaryCollector, TimeMonitor
from hookpoint.core.errors import NonFiniteLoss

STEPS = 14  # per epoch


def accuracy(outputs, targets):
    return (outputs.argmax(dim=1) == targets).double().mean()


@pytest.fixture(scope="module")
def digits(digits):
    """Images for training and for evaluation."""
    inputs, targets = digits
    return (inputs[:1400], targets[:1400]), (inputs[1400:], targets[1400:])


@pytest.fixture
def runner(network):
    """Return a factory for the equivalent of `Model(network, loss_fn, optimizer, metrics={"accuracy"})`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def make(callbacks, lr=0.1, **given):
        options = {"callbacks": callbacks, "metrics": {"accuracy": accuracy}, "device": "cpu", **given}
        return Runner(*network(lr), nn.CrossEntropyLoss(), **options)

    yield make
    torch.set_num_threads(threads)


# Built-in


def test_the_four_built_in_callbacks_work_together(runner, digits, tmp_path, capsys):
    config_ck = CheckpointConfig(save_checkpoint_steps=10, keep_checkpoint_max=3)
    ckpoint_cb = ModelCheckpoint(prefix="digits", config=config_ck)
    callbacks = [ckpoint_cb, SummaryCollector(collect_freq=10), LossMonitor(per_print_times=7), TimeMonitor()]
    trained = runner(callbacks, workdir=tmp_path)
    trained.fit(digits[0], epochs=3, batch_size=100)

    folders = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert folders == [f"step-{step:08d}" for step in (30, 40, 42)], "two by schedule, and the end"
    assert ckpoint_cb.latest_ckpt_file_name == str(tmp_path / "checkpoints" / "step-00000042")
    weights = load_weights(ckpoint_cb.latest_ckpt_file_name)
    assert all(torch.equal(weights[name], value) for name, value in trained.model.state_dict().items())

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss/auto")] == [1, 10, 20, 30, 40]
    assert [event.value for event in events.Scalars("learning_rate/auto")] == [pytest.approx(0.1)] * 5
    assert {"weights/0.weight", "gradients/0.weight"} <= set(events.Tags()["histograms"])
    assert events.Graph().node

    printed = capsys.readouterr().err
    losses = re.findall(r"^epoch: (\d) step: (\d+), loss is ([\d.]+)$", printed, re.MULTILINE)
    assert [(int(epoch), int(step)) for epoch, step, _ in losses] == [(epoch, step) for epoch in (1, 2, 3) for step in (7, 14)]
    values = [float(loss) for *_, loss in losses]
    assert values == sorted(values, reverse=True)
    assert len(re.findall(r"^Train epoch time: [\d.]+ ms, per step time: [\d.]+ ms$", printed, re.MULTILINE)) == 3


def test_training_ends_when_the_loss_is_nan(runner, digits, tmp_path):
    config_ck = CheckpointConfig(save_checkpoint_steps=1, keep_checkpoint_max=2)
    trained = runner([ModelCheckpoint("digits", config=config_ck), LossMonitor()], workdir=tmp_path, monitors=[])
    inputs, targets = digits[0]
    batches = [(inputs[:100], targets[:100])] * 3 + [(inputs[:100] * float("nan"), targets[:100])] * 3
    with pytest.raises(NonFiniteLoss, match="the loss is nan at step 4"):
        trained.fit(batches, epochs=2)
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    assert newest.name == "step-00000003"
    assert all(value.isfinite().all() for value in load_weights(newest).values())


# User-written


def test_net_outputs_are_the_loss_with_its_graph(runner, digits):
    seen = []

    class Read(Callback):
        def step_end(self, run_context):
            seen.append((float(run_context.original_args().net_outputs), run_context.loss.requires_grad))

    runner([Read()], extra_callbacks=[], monitors=[]).fit(digits[0], epochs=1, batch_size=700)
    assert [(round(loss), has_graph) for loss, has_graph in seen] == [(2, True), (2, True)]


class StopAtTime(Callback):
    """Request a stop after `run_time` minutes of training."""

    def __init__(self, run_time):
        super().__init__()
        self.run_time = run_time * 60

    def begin(self, run_context):
        cb_params = run_context.original_args()
        cb_params.init_time = time.time()

    def step_end(self, run_context):
        cb_params = run_context.original_args()
        epoch_num, step_num, loss = cb_params.cur_epoch_num, cb_params.cur_step_num, cb_params.net_outputs
        if time.time() - cb_params.init_time > self.run_time:
            print(f"epoch: {epoch_num}, step: {step_num}, loss: {float(loss):.3f}")
            run_context.request_stop()


class SaveCallback(Callback):
    """Evaluate after each step, and save the network under its accuracy if that is the best so far."""

    def __init__(self, eval_model, ds_eval, folder):
        super().__init__()
        self.model = eval_model
        self.ds_eval = ds_eval
        self.folder = folder
        self.acc = 0

    def step_end(self, run_context):
        cb_params = run_context.original_args()
        result = self.model().validate(self.ds_eval, batch_size=100)
        if result["val_accuracy"] > self.acc:
            self.acc = result["val_accuracy"]
            torch.save(cb_params.train_network.state_dict(), self.folder / f"{self.acc}.ckpt")


@pytest.mark.parametrize("minutes", [0.0, 60.0])
def test_stop_at_time_stops_after_its_minutes(minutes, runner, digits, capsys):
    run = runner([StopAtTime(minutes)]).fit(digits[0], epochs=2, batch_size=100)
    said = re.findall(r"^epoch: 1, step: 1, loss: 2\.\d+$", capsys.readouterr().out, re.MULTILINE)
    assert (run.epoch, run.step, len(said)) == ((1, 1, 1) if minutes == 0 else (2, 2 * STEPS, 0))


def test_stop_at_time_stops_in_the_middle_of_an_epoch(runner, digits, monkeypatch):
    now = iter(range(1000))
    monkeypatch.setattr(time, "time", lambda clock=time.time: clock() + 60 * next(now))
    run = runner([StopAtTime(2.5)], extra_callbacks=[], monitors=[]).fit(digits[0], epochs=2, batch_size=100)
    assert (run.epoch, run.epoch_complete) == (1, False)
    assert 1 <= run.step <= 3


def test_saving_the_best_accuracy_does_not_change_the_training(runner, digits, tmp_path):
    save = SaveCallback(lambda: saving, digits[1], tmp_path)
    saving = runner([save], monitors=[])
    saving.fit(digits[0], epochs=2, batch_size=100)
    plain = runner([], monitors=[])
    plain.fit(digits[0], epochs=2, batch_size=100)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(saving.model.state_dict()[name], value), "to evaluate disturbs nothing"

    saved = {float(path.stem): torch.load(path, weights_only=True) for path in tmp_path.glob("*.ckpt")}
    assert len(saved) > 5
    assert max(saved) == save.acc > 0.7
    for acc, weights in saved.items():
        plain.model.load_state_dict(weights)
        assert accuracy(plain.model(digits[1][0]), digits[1][1]).item() == pytest.approx(acc, abs=1e-12)


def test_the_save_callback_of_the_guide_runs_as_written(runner, digits, tmp_path, monkeypatch, capsys):
    class SaveCallback(Callback):
        def __init__(self, eval_model, ds_eval):
            super().__init__()
            self.model = eval_model
            self.ds_eval = ds_eval
            self.acc = 0

        def step_end(self, run_context):
            cb_params = run_context.original_args()
            result = self.model.eval(self.ds_eval)
            if result["accuracy"] > self.acc:
                self.acc = result["accuracy"]
                file_name = str(self.acc) + ".ckpt"
                save_checkpoint(save_obj=cb_params.train_network, ckpt_file_name=file_name)
                print("Save the maximum accuracy checkpoint,the accuracy is", self.acc)

    monkeypatch.chdir(tmp_path)
    ds_eval = DataLoader(TensorDataset(*digits[1]), batch_size=100)
    network = runner([], monitors=[])
    eval_model = Runner(network.model, None, nn.CrossEntropyLoss(), metrics={"accuracy": accuracy}, monitors=[])
    save = SaveCallback(eval_model, ds_eval)
    model = Runner(network.model, network.optimizer, nn.CrossEntropyLoss(), callbacks=[save], monitors=[])
    model.fit(digits[0], epochs=1, batch_size=100)
    saved = sorted(tmp_path.glob("*.ckpt"), key=lambda path: float(path.stem))
    assert capsys.readouterr().out.count("Save the maximum accuracy") == len(saved) > 1
    plain = runner([], monitors=[])
    plain.model.load_state_dict(load_weights(saved[-1]))
    assert plain.eval(ds_eval)["accuracy"] == save.acc == float(saved[-1].stem)


def test_a_callback_can_save_the_best_accuracy_through_the_run(runner, digits, tmp_path):
    class SaveBest(Callback):
        def __init__(self):
            super().__init__()
            self.best = {}

        def epoch_end(self, run_context):
            cb_params = run_context.original_args()
            acc = cb_params.metrics["val_accuracy"]
            if acc > max(self.best.values(), default=0):
                self.best[cb_params.cur_step_num] = acc
                run_context.save("most-accurate")

    save = SaveBest()
    runner([save], workdir=tmp_path, monitors=[]).fit(*digits, epochs=3, batch_size=100)
    folders = sorted((tmp_path / "checkpoints").glob("step-*"))
    assert {f"step-{step:08d}" for step in save.best} <= {folder.name for folder in folders}
    network = runner([]).model
    for step, acc in save.best.items():
        network.load_state_dict(load_weights(tmp_path / "checkpoints" / f"step-{step:08d}"))
        assert accuracy(network(digits[1][0]), digits[1][1]).item() == pytest.approx(acc, abs=1e-12)
