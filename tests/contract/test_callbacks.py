"""One suite of tests that every included callback must pass."""

from __future__ import annotations

import atexit
import copy
import json
import pickle
import re
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace

import numpy
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from torch import nn
from torch.optim import SGD

from hookpoint import Callback, Every, Hooks, Loop, ObjAttrParam, callbacks
from hookpoint.storage.checkpoint.tree import copied
from hookpoint.storage.checkpoint_store import CheckpointStore


def first(outputs, targets):
    return outputs[0]


def rate(epoch, old=None):
    return 1 / (epoch + 1)


def low(old):
    return 0.125


def nothing():
    pass


def a_loss(run):
    return run.metrics["loss"]


def a_mean(model, batch):
    return model(batch[0]).mean()


def a_picture(run):
    return numpy.full((2, 3), run.step / 12)


def first_of(value, *others):
    return value


def look(*given):
    pass


DROPOUT = ObjAttrParam(SimpleNamespace(dropout=0.5), "dropout")


STORE = tempfile.mkdtemp(prefix="hookpoint-")  # one database for all MLflow runs, because creating one is slow
atexit.register(shutil.rmtree, STORE, ignore_errors=True)

# The arguments of each class in these tests. An included class that is missing from this table fails the suite.
ARGUMENTS = {
    "ActivationStats": {"pattern": "layer"},
    "BackupAndRestore": {},
    "CSVLogger": {},
    "CheckNumerics": {"parameters": False, "tensors": {"a loss": a_loss}},
    "CheckReplicas": {},
    "DumpTensorAsImage": {"tensor_name": a_picture, "prefix": "picture"},
    "DumpTensors": {"names": ["batch", "loss"]},
    "EarlyStopping": {"monitor": "score", "mode": "max", "patience": 2},
    "EmbeddingCollector": {"layers": "layer"},
    "EstimatedTimeLeft": {},
    "FeatureTap": {"pattern": "layer"},
    "FlopsTracker": {"peak_flops": 1e12},
    "GPUMemoryTracker": {},
    "GPUUtilizationTracker": {},
    "GarbageCollector": {"every": 2},
    "GradientStats": {"every": 2, "updates": True},
    "History": {},
    "HookTrace": {"steps": 5},
    "HostMemoryTracker": {},
    "HumanHyperParamSetter": {"param": DROPOUT},
    "HyperParamSetterWithFunc": {"param": DROPOUT, "func": rate},
    "InferenceRunner": {"data": [[1, 2], [3, 4]], "metrics": {"first": first}, "forward": list},
    "InjectShell": {"shell": "python"},
    "JSONWriter": {},
    "LearningRateScheduler": {"schedule": rate, "param": DROPOUT},
    "LossLandscape": {"data": [(torch.ones(2, 1), torch.ones(2, 1))], "loss": a_mean, "size": 3},
    "LossMonitor": {"per_print_times": 2},
    "MLflowMonitor": {"tracking_uri": f"sqlite:///{STORE}/mlflow.db"},
    "MaxSaver": {"monitor_stat": "score"},
    "MaxSteps": {"n": 99},
    "MergeAllSummaries": {},
    "MinSaver": {"monitor_stat": "score"},
    "Mirror": {"url": "memory://contract"},
    "ModelCheckpoint": {"monitor": "score"},
    "ModelSaver": {},
    "ModuleHooks": {"pattern": "*", "forward": look},
    "MovingAverageSummary": {},
    "Notify": {"url": "json://127.0.0.1:1/", "best": "score", "mode": "max"},
    "OnRequestExit": {},
    "ParameterHooks": {"pattern": "*.weight", "grad": look},
    "ProcessTensors": {"names": ["batch", "loss"], "fn": first_of},
    "ProfilerTrace": {"at": 2, "steps": 2},
    "ProgressBar": {},
    "ReduceLROnPlateau": {"monitor": "score", "mode": "min", "patience": 2, "param": DROPOUT},
    "RemoteMonitor": {"root": "http://127.0.0.1:1"},
    "RunOp": {"op": nothing, "run_step": True},
    "RunUpdateOps": {},
    "ScalarPrinter": {},
    "ScheduledHyperParamSetter": {"param": DROPOUT, "schedule": [(0, 0.5), (3, 0.0)], "interp": "linear"},
    "SendMonitorData": {"command": ["true", "{score}"], "names": ["loss", "score"]},
    "SendStat": {"command": ["true", "{score}"], "names": "score"},
    "SimpleMovingAverage": {"tensors": ["loss"], "window_size": 5},
    "StartProcOrThread": {"startable": ["sleep", "60"]},
    "StatMonitorParamSetter": {"param": DROPOUT, "stat_name": "score", "value_func": low, "threshold": 9.0, "last_k": 4},
    "StepTimeout": {"seconds": 60},
    "StochasticWeightAveraging": {"start": 2, "model": nn.Linear(1, 1)},
    "StopAtThreshold": {"monitor": "score", "threshold": 99.0, "mode": "max"},
    "StopAtTime": {"hours": 9},
    "SummaryCollector": {"collect_freq": 2},
    "SwapEMAWeights": {"model": nn.Linear(1, 1)},
    "TFEventWriter": {},
    "TensorPrinter": {"names": ["batch", "loss"]},
    "TerminateOnNaN": {},
    "ThroughputTracker": {},
    "TimeMonitor": {"data_size": 2, "data_time": True},
    "TopKSaver": {"monitor_stat": "score", "k": 2},
    "WandbMonitor": {"project": "tests", "mode": "offline"},
}
HOOKED = ("ActivationStats", "FeatureTap", "GradientStats", "ModuleHooks", "ParameterHooks")
HOOKED += ("EmbeddingCollector", "LossLandscape")
EPOCHS, BATCHES = 3, 4

CLASSES = {name: getattr(callbacks, name) for name in callbacks.__all__}
CLASSES = {name: one for name, one in CLASSES.items() if isinstance(one, type) and issubclass(one, Callback)}
every_class = pytest.mark.parametrize("name", CLASSES)


def make(name):
    return CLASSES[name](**copy.deepcopy(ARGUMENTS[name]))


class Asks(Callback):
    """Request checkpoints, at the end of epochs and within them."""

    saves = True

    def on_trigger(self, run):
        run.save("asked")


def parts(callback):
    """Return the loop's arguments for a callback with model hooks, which requires a model."""
    if type(callback).__name__ not in HOOKED:
        return {}
    model = nn.Sequential(OrderedDict(layer=nn.Linear(1, 1)))
    return {"model": model, "optimizer": SGD(model.parameters())}


class Cut(Exception):
    """Raised to interrupt the run."""


def train(workdir, callback, *, scores=(0.5, 0.25, 0.75), cut_at=None, resume="auto"):
    """Train the run in a workdir to its end, or until iteration `cut_at`."""
    asks = Asks().when(Every(steps=6) | Every(epochs=1))
    if not (workdir / "run.json").exists():
        MemoryFileSystem.store.clear()  # a mirror belongs to one run
    options = {"log_every": 2, "extra_callbacks": [], "monitors": [], **parts(callback)}
    with Loop([callback, asks], workdir=workdir, resume=resume, **options) as run:
        run.summary("summary", lambda: run.step / 8)
        run.update_op(lambda: None)
        for epoch in run.epochs(EPOCHS):
            for batch in run.batches(range(BATCHES)):
                run.log(loss=(batch + 1) / (3 * epoch))
                if run.current_iteration == cut_at:
                    raise Cut
                if run.optimizer is not None:
                    run.optimizer.step()
            run.log(score=scores[epoch - 1])
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a callback after a whole run, its state in the checkpoint, and the metrics; each class is trained once.

    The callback is pickled before the run, as if it were sent to another process.
    """
    trained = {}

    def run_of(name):
        if name not in trained:
            workdir, callback = tmp_path_factory.mktemp(name), pickle.loads(pickle.dumps(make(name)))
            metrics = set(train(workdir, callback).metrics)
            trained[name] = SimpleNamespace(callback=callback, state=kept(workdir, callback), metrics=metrics)
        return trained[name]

    return run_of


def kept(workdir, callback):
    """Return the state of a callback in the newest checkpoint of a workdir, read from its files."""
    store = CheckpointStore(workdir)
    try:
        state = store.open("must", {}).state["callbacks"]
    finally:
        store.close()
    (entry,) = Hooks([callback]).entries
    return state[entry.name]["state"]


def comparable(state):
    """Return a state without values that differ between runs, such as times and sizes that depend on them."""
    differs = {"run_id": bool, "sizes": bool, "seconds": shape}
    return {key: differs.get(key, lambda same: same)(value) for key, value in listed(state).items()}


def listed(state):
    """Return a state with lists in place of tensors and arrays."""
    return copied(state, lambda value, where: value.tolist())


def shape(value):
    """Return the structure of a value, with types in place of the values."""
    if isinstance(value, Mapping):
        return {key: shape(one) for key, one in value.items()}
    return list(map(shape, value)) if isinstance(value, list) else type(value)


@every_class
def test_a_callback_declares_the_metrics_that_it_logs(name, whole):
    callback = make(name)
    others = whole(name).metrics - {"loss", "score", "summary", *callback.writes, *callback.may_write}
    assert callback.writes_anything or not others


def test_every_class_is_in_the_table():
    assert set(CLASSES) == set(ARGUMENTS)


# State


@every_class
def test_state_is_plain_data_and_survives_a_round_trip(name, whole):
    state = whole(name).state
    assert isinstance(state, Mapping)
    assert copied(state) == state
    fresh = make(name)
    fresh.load_state_dict(state)
    assert listed(fresh.state_dict()) == listed(state)
    assert json.loads(json.dumps(listed(state))) == listed(state)


@every_class
def test_state_dict_works_before_a_run(name):
    assert copied(make(name).state_dict()) == make(name).state_dict()


@every_class
def test_a_resumed_run_ends_with_the_same_state(name, whole, tmp_path):
    for cut_at in (5, 8):  # after a checkpoint between epochs, and after one inside an epoch
        with pytest.raises(Cut):
            train(tmp_path, make(name), cut_at=cut_at)
    last = make(name)
    train(tmp_path, last)
    assert comparable(kept(tmp_path, last)) == comparable(whole(name).state)


@every_class
@pytest.mark.parametrize(
    "cut_at", [pytest.param(None, id="a finished run", marks=pytest.mark.slow), pytest.param(10, id="a run that failed")]
)
def test_a_fresh_run_forgets_the_previous_run(name, cut_at, whole, tmp_path):
    used = make(name)
    with nullcontext() if cut_at is None else pytest.raises(Cut):
        train(tmp_path / "before", used, scores=(-9.0, 9.0, 0.0), cut_at=cut_at)
    train(tmp_path / "used", used)
    assert comparable(kept(tmp_path / "used", used)) == comparable(whole(name).state)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Return the workdirs of two interrupted runs, without and with a model, whose checkpoints lack the tested callback."""
    workdirs = {}
    for name in ("History", "ModuleHooks"):
        workdirs[name in HOOKED] = workdir = tmp_path_factory.mktemp(name)
        with pytest.raises(Cut):
            train(workdir, make(name), cut_at=5)
    return workdirs


@pytest.mark.thin(34)
@every_class
def test_a_callback_resumed_without_its_state_forgets_the_previous_run(name, started, tmp_path):
    states = []
    for used in (False, True):
        callback = CLASSES[name](**copy.deepcopy(ARGUMENTS[name]), name="mine")
        if used:
            train(tmp_path / "before", callback, scores=(-9.0, 9.0, 0.0))
        MemoryFileSystem.store.clear()
        workdir = shutil.copytree(started[name in HOOKED], tmp_path / str(used))
        train(workdir, callback)
        states.append(comparable(kept(workdir, callback)))
    assert states[0] == states[1]


# Identity


@every_class
def test_the_name_starts_with_the_class_and_is_stable(name):
    names = [[entry.name for entry in Hooks([make(name)]).entries] for _ in range(2)]
    assert names[0] == names[1]
    assert re.fullmatch(rf"{name}(\(.+\))?", names[0][0])


@every_class
def test_a_second_instance_gets_a_numbered_name(name):
    first, second = (entry.name for entry in Hooks([make(name), make(name)]).entries)
    assert second == f"{first}#2"


@every_class
def test_a_given_name_is_used(name):
    (entry,) = Hooks([CLASSES[name](**ARGUMENTS[name], name="mine")]).entries
    assert entry.name == "mine"


@every_class
def test_a_callback_can_be_pickled_before_and_after_a_run(name, whole):
    callback = whole(name).callback
    again = pickle.loads(pickle.dumps(callback))
    assert type(again) is CLASSES[name]
    assert comparable(again.state_dict()) == comparable(callback.state_dict())


# Reference


@every_class
def test_the_docstring_has_an_example(name):
    assert ">>> " in (CLASSES[name].__doc__ or "")


@every_class
def test_a_callback_declares_its_state_and_the_cost_of_a_step(name, whole):
    cls, state = CLASSES[name], whole(name).state
    keeps = getattr(cls, "keeps", "")
    assert cls.step_cost
    if keeps:  # a monitor may know its id only after its first record
        assert state or cls.state_dict is not Callback.state_dict
    else:
        assert state == {}
    for fact in (keeps, cls.step_cost):
        assert not fact.endswith("."), "the reference joins the facts on one line"
