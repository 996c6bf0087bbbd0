"""A run whose data depends on settings changed by callbacks resumes exactly, from any position."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import hookpoint
from hookpoint import Callback, Every, HookedLoader, Loop, Replace, SeededSamples, callbacks
from hookpoint.core.errors import BadLoop
from hookpoint.engine.runner import Runner

EXAMPLES = Path(__file__).parents[2] / "examples"
WORKERS = {
    "no workers": {},
    "2 workers": {"num_workers": 2},
    "2 that stay": {"num_workers": 2, "persistent_workers": True},
}


class Gone(BaseException):
    """Raised to interrupt the run, as if the process had ended."""


class Numbers(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.full((4,), float(index))


class Stream(IterableDataset):
    def __iter__(self):
        return (torch.full((4,), float(number)) for number in range(22))


class Curriculum(Callback):
    """Noise with a setting that changes in the middle of epochs, depends on a metric, and applies from the next pass on."""

    def on_sample(self, sample, settings, epoch, batch_idx):
        return Replace(sample / 22 + settings["noise"] * torch.randn(4) + epoch / 100 + batch_idx / 1000)

    def on_batch_made(self, batch, batch_idx):
        return Replace((batch + batch_idx / 1000 + torch.rand(1) / 100, batch.sum(1, keepdim=True)))

    def on_epoch_begin(self, run):
        run.train_loader.settings["begun"] = run.epoch

    def on_train_iter_end(self, run, batch_idx):
        if batch_idx == 1 or run.train_loader.settings.per_batch:
            run.train_loader.settings["noise"] = 0.05 * run.epoch + run.loss.item() / 10


SETTINGS = {"noise": 0.1, "begun": 0}


def loader_of(dataset, callback, **options):
    return HookedLoader(dataset, 4, callbacks=[callback], settings=SETTINGS, **options)


@contextmanager
def workers_ended(loader):
    """End persistent workers: garbage collection of a loader waits five seconds for each."""
    try:
        yield
    finally:
        if loader._iterator is not None:
            loader._iterator._shutdown_workers()


def train(workdir, gone_at=None, *, every=1, **options):
    """Train; return the final state."""
    torch.manual_seed(3)
    curriculum = Curriculum()
    loader = loader_of(SeededSamples(Numbers(), seed=1), curriculum, shuffle=True, **options)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.25), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    saver = callbacks.ModelSaver().when(Every(steps=every))
    runner = Runner(model, optimizer, nn.MSELoss(), callbacks=[curriculum, saver], workdir=workdir)

    @runner.on("on_train_iter_end")
    def leave(run):
        if gone_at is not None and run.iteration >= gone_at:
            raise Gone

    with workers_ended(loader):
        run = runner.fit(loader, epochs=3)
    return [one.tolist() for one in model.parameters()], dict(run.metrics), dict(loader.settings), torch.rand(1).item()


@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)
def test_an_interrupted_run_ends_with_the_same_result(tmp_path, options, spread):
    whole = train(tmp_path / "whole", **options)
    assert whole[2]["begun"] == 3
    for number, gone_at in enumerate([3, 9] if options else spread([1, 2, 3, 4, 6, 7, 8, 9, 12, 14], 4)):
        workdir = tmp_path / str(number)
        with pytest.raises(Gone):
            train(workdir, gone_at, **options)
        assert train(workdir, **options) == whole


@pytest.mark.thin(2)
@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)
def test_settings_that_change_at_each_step_are_restored(tmp_path, options):
    options = {"settings_per": "batch", **options}
    whole = train(tmp_path / "whole", **options)
    for gone_at in (2, 9):
        with pytest.raises(Gone):
            train(tmp_path / str(gone_at), gone_at, **options)
        assert train(tmp_path / str(gone_at), **options) == whole


def test_a_run_with_checkpoints_between_epochs_resumes_exactly(tmp_path):
    every = {"every": 6}  # the number of steps in an epoch
    whole = train(tmp_path / "whole", **every)
    for gone_at in (7, 15):
        with pytest.raises(Gone):
            train(tmp_path / str(gone_at), gone_at, **every)
        assert train(tmp_path / str(gone_at), **every) == whole


def test_the_number_of_workers_does_not_matter(tmp_path):
    assert train(tmp_path / "workers", num_workers=2)[:3] == train(tmp_path / "none")[:3]


# In your own loop


def train_by_hand(workdir, gone_at=None, *, stream=False, keeps=True):
    torch.manual_seed(3)
    curriculum = Curriculum()
    data = Stream() if stream else SeededSamples(Numbers(), seed=1)
    loader = loader_of(data, curriculum, **({} if stream else {"shuffle": True}))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    state = {"data": loader.settings} if keeps else {}
    saver = callbacks.ModelSaver().when(Every(steps=1))
    loop = Loop([curriculum, saver], extra_callbacks=[], model=model, optimizer=optimizer, workdir=workdir, state=state)
    with loop as run:
        run.train_loader = loader
        for _ in run.epochs(3):
            for inputs, targets in run.batches(loader):
                run.loss = (model(inputs) - targets).square().mean()
                optimizer.zero_grad()
                run.loss.backward()
                optimizer.step()
                run.log(loss=run.loss)
                if gone_at == run.iteration:
                    raise Gone
    return [one.tolist() for one in model.parameters()], dict(run.metrics), dict(loader.settings)


@pytest.mark.parametrize("stream", [False, True], ids=["index", "stream"])
def test_a_custom_loop_resumes_exactly(tmp_path, stream, spread):
    whole = train_by_hand(tmp_path / "whole", stream=stream)
    for gone_at in spread([1, 3, 7, 8, 14], 3):
        with pytest.raises(Gone):
            train_by_hand(tmp_path / str(gone_at), gone_at, stream=stream)
        assert train_by_hand(tmp_path / str(gone_at), stream=stream) == whole


def test_settings_missing_from_the_checkpoint_raise(tmp_path):
    with pytest.raises(BadLoop, match=r"loader's settings \(noise, begun\) would not be in the checkpoint"):
        train_by_hand(tmp_path, keeps=False)


# Killed


def make_runner(workdir, **options):
    """Return the runner of the example, set to three epochs."""
    sys.path.insert(0, str(EXAMPLES))
    runner, arguments = importlib.import_module("curriculum").make_runner(workdir, **options)
    return runner, {**arguments, "epochs": 3}


def make_runner_with_new_workers(workdir):
    return make_runner(workdir, persistent_workers=False)


@pytest.mark.parametrize(
    "persistent", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["workers that stay", "new workers"]
)
def test_the_example_resumes_exactly_in_the_middle_of_an_epoch(tmp_path, persistent):
    def fit(name, gone_at=None):
        runner, arguments = make_runner(tmp_path / name, persistent_workers=persistent)

        @runner.on("on_train_iter_end")
        def leave(run):
            if run.step == gone_at:
                raise Gone

        with workers_ended(arguments["train"]):
            run = runner.fit(**{**arguments, "epochs": 2})
        weights = [one.tolist() for one in runner.model.parameters()]
        return run.step, weights, dict(run.metrics), dict(arguments["train"].settings), torch.rand(1).item()

    whole = fit("whole")
    assert whole[0] == 40
    with pytest.raises(Gone):
        fit("cut", 33)
    assert fit("cut") == whole


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_runner, make_runner_with_new_workers], ids=["workers that stay", "new workers"])
def test_the_example_resumes_exactly_after_a_kill(monkeypatch, make):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # one thread: the model is tiny
    proof = hookpoint.prove(make, kill_at=[53])
    assert proof.ok, str(proof)
    assert (proof.steps, proof.killed_at) == (60, (53,))
