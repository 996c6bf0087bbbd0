"""Every included callback, in training with torch, leaves the weights unchanged and cleans up."""

from __future__ import annotations

import atexit
import random
import shutil
import signal
import tempfile
import threading
import time
from functools import partial
from importlib import import_module

import pytest
import torch
from torch import nn

from hookpoint import Callback, Runner, callbacks
from hookpoint.core.points import POINTS

RARE = {"on_iter_error", "on_iter_skip", "on_load", "on_exception", "on_records"}  # not fired in an uneventful run
STORE = tempfile.mkdtemp(prefix="hookpoint-")  # one database for all MLflow runs, because creating one is slow
atexit.register(shutil.rmtree, STORE, ignore_errors=True)

# Arguments for the classes that need some. Callbacks that change the training get arguments with which they do not.
ARGUMENTS = {
    "ActivationStats": {"pattern": "*", "every": 2},
    "CheckNumerics": {"gradients": True, "loss": True},
    "DumpTensorAsImage": {"tensor_name": "3.weight"},
    "DumpTensors": {"names": ["loss", "outputs", "batch/0", "0.weight", "1.running_mean", "3.weight.grad"]},
    "EarlyStopping": {"patience": 9, "restore_best_weights": False},
    "EmbeddingCollector": {"layers": "[03]"},
    "FeatureTap": {"pattern": "*", "modes": ["pred", "val"]},
    "GarbageCollector": {"every": 2, "freeze": True},
    "GradientStats": {"every": 2, "per_parameter": True, "updates": True},
    "HookTrace": {"steps": 5},
    "HumanHyperParamSetter": {"param": "learning_rate"},
    "HyperParamSetterWithFunc": {"param": "learning_rate", "func": lambda epochs_done, rate: rate},
    "InjectShell": {"shell": "python"},
    "LearningRateScheduler": {"schedule": lambda epoch, rate: rate},
    "LossLandscape": {"data": [(torch.ones(4, 3), torch.zeros(4, dtype=torch.long))], "size": 3},
    "MLflowMonitor": {"tracking_uri": f"sqlite:///{STORE}/mlflow.db"},
    "Mirror": {"url": "memory://training"},
    "MaxSaver": {"monitor_stat": "val_loss"},
    "MaxSteps": {"n": 99},
    "MinSaver": {"monitor_stat": "val_loss"},
    "ModelCheckpoint": {"monitor": "val_loss"},
    "ModuleHooks": {"pattern": "[1-3]", "forward": lambda *given: None, "backward": lambda *given: None},
    "ParameterHooks": {"pattern": "*", "grad": lambda gradient: None, "post_accumulate_grad": lambda parameter: None},
    "ProcessTensors": {"names": ["loss", "3.weight.grad"], "fn": lambda loss, gradient: None},
    "ProfilerTrace": {"at": 2, "steps": 2},
    "ReduceLROnPlateau": {"patience": 9},
    "Notify": {"url": "json://127.0.0.1:1/", "best": "val_loss"},
    "RemoteMonitor": {"root": "http://127.0.0.1:1"},
    "RunOp": {"op": lambda: None},
    "ScheduledHyperParamSetter": {"param": "learning_rate", "schedule": [(0, 0.1)]},
    "SendMonitorData": {"command": ["true", "{loss}"], "names": ["loss"]},
    "SendStat": {"command": ["true", "{loss}"], "names": "loss"},
    "SimpleMovingAverage": {"tensors": ["loss"], "window_size": 2},
    "StartProcOrThread": {"startable": ["sleep", "60"]},
    "StatMonitorParamSetter": {
        "param": "learning_rate",
        "stat_name": "val_loss",
        "value_func": lambda rate: rate,
        "threshold": 9.0,
        "last_k": 4,
    },
    "StepTimeout": {"seconds": 60},
    "StochasticWeightAveraging": {"start": 99, "lr": 0.01},
    "StopAtThreshold": {"monitor": "val_loss", "threshold": -1.0, "mode": "min"},
    "StopAtTime": {"hours": 9},
    "SummaryCollector": {"collect_freq": 2},
    "TensorPrinter": {"names": ["loss", "outputs", "3.weight.grad"]},
    "TimeMonitor": {"data_size": 2, "data_time": True},
    "TopKSaver": {"monitor_stat": "val_loss"},
    "WandbMonitor": {"project": "tests", "mode": "offline"},
}
SECONDS = 10.0  # the time in which stopped threads must end

CLASSES = {name: getattr(callbacks, name) for name in callbacks.__all__}
CLASSES = {name: one for name, one in CLASSES.items() if isinstance(one, type) and issubclass(one, Callback)}
every_class = pytest.mark.parametrize("name", CLASSES)


def make(name):
    if name == "InferenceRunner":
        data = [(torch.ones(4, 3), torch.zeros(4, dtype=torch.long))]
        return callbacks.InferenceRunner(data, [callbacks.ClassificationError()])
    return CLASSES[name](**ARGUMENTS.get(name, {}))


class Fails(Callback):
    def on_train_iter_end(self, run):
        if run.step == 5:
            raise ValueError("in the middle")


def train(workdir, *list_of_callbacks):
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = torch.randn(24, 3), torch.randint(0, 2, (24,))
    options = {"workdir": workdir, "extra_callbacks": [], "monitors": []}
    runner = Runner(model, optimizer, nn.CrossEntropyLoss(), callbacks=list_of_callbacks, **options)
    error = None
    try:
        runner.fit((inputs, targets), (inputs[:8], targets[:8]), epochs=3, batch_size=4)
    except ValueError as raised:
        error = raised
    gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    return model, gradients, (torch.get_rng_state(), random.getstate()), error


def assert_equal(one, other):
    for mine, its in zip(one, other, strict=True):
        assert (mine is None) == (its is None)
        assert mine is None or torch.equal(mine, its)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return {fails: train(tmp_path_factory.mktemp("bare"), *([Fails()] if fails else [])) for fails in (False, True)}


def start_pool_of_apprise():
    """Start the threads that Apprise keeps until the process ends; they do not belong to the callback."""
    make("Notify")  # imports Apprise and ignores its warnings
    services = import_module("apprise").Apprise()
    services.add(ARGUMENTS["Notify"]["url"])
    services.notify(body="started", timeout=SECONDS)


@every_class
@pytest.mark.parametrize("fails", [False, True], ids=["to the end", "with an exception"])
def test_a_callback_does_not_change_the_training_and_cleans_up(name, fails, bare, tmp_path):
    if name == "Notify":
        start_pool_of_apprise()
    threads = set(threading.enumerate())
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    model, gradients, numbers, error = train(tmp_path, make(name), *([Fails()] if fails else []))
    expected_model, expected_gradients, expected_numbers, expected_error = bare[fails]

    assert type(error) is type(expected_error)
    assert_equal(model.state_dict().values(), expected_model.state_dict().values())
    assert_equal(gradients, expected_gradients)
    assert torch.equal(numbers[0], expected_numbers[0])
    assert numbers[1] == expected_numbers[1]
    assert [module.training for module in model.modules()] == [module.training for module in expected_model.modules()]

    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
        assert not module._backward_pre_hooks
    for parameter in model.parameters():
        assert not parameter._backward_hooks
        assert not parameter._post_accumulate_grad_hooks
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == handlers
    deadline = time.monotonic() + SECONDS
    while (left := set(threading.enumerate()) - threads) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


FIRED = [  # fired in a run with a validation and a saver
    point.name
    for point in POINTS
    if not point.main_only and not point.in_data and "pred" not in point.name and point.name not in RARE
]


def named(point):
    """Return the name of a point in messages: a trigger is part of the end of an epoch."""
    return "on_epoch_end" if point == "on_trigger" else point


class Everywhere(Callback):
    """Record every point."""

    def __init__(self):
        super().__init__()
        self.seen = []
        for name in FIRED:
            setattr(self, name, partial(self.seen.append, name))


class FailsAt(Callback):
    """Fail each time at a point."""

    def __init__(self, point, **options):
        super().__init__(**options)
        self.calls = 0
        setattr(self, point, partial(self._fail, point))

    def _fail(self, point):
        self.calls += 1
        raise ZeroDivisionError(point)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return train(tmp_path_factory.mktemp("saved"), callbacks.ModelSaver())


@pytest.mark.parametrize("point", FIRED)
def test_a_callback_that_fails_with_on_error_warn_changes_no_weight(point, saved, tmp_path, caplog):
    expected, _, numbers, _ = saved
    fails, after = FailsAt(point, on_error="warn"), Everywhere()
    model, _, its_numbers, error = train(tmp_path, fails, callbacks.ModelSaver(), after)
    assert error is None
    assert_equal(model.state_dict().values(), expected.state_dict().values())
    assert torch.equal(numbers[0], its_numbers[0])
    assert after.seen.count("on_train_iter_end") == 18
    assert fails.calls == min(after.seen.count(point), 3)
    assert sum(f"failed at {named(point)}: ZeroDivisionError" in message for message in caplog.messages) == fails.calls > 0


@pytest.mark.parametrize("point", FIRED)
def test_a_failing_callback_ends_the_run_and_others_get_on_run_end(point, tmp_path):
    before, after = Everywhere(), Everywhere()
    with pytest.raises(ZeroDivisionError) as raised:
        train(tmp_path, before, FailsAt(point, name="bad"), callbacks.ModelSaver(), after)
    assert raised.value.args == (point,)
    assert any(note.startswith(f"in callback bad at {named(point)} ") for note in raised.value.__notes__)
    assert before.seen[-1] == after.seen[-1] == "on_run_end"
