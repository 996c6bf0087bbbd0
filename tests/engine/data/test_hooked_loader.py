from __future__ import annotations

import random
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, get_worker_info

from hookpoint import Callback, HookedLoader, LambdaCallback, Loop, Replace, SeededSamples
from hookpoint.callbacks import ScheduledHyperParamSetter
from hookpoint.core.errors import BadLoop, NotACallback
from hookpoint.engine.runner import Runner

WORKERS = [{}, {"num_workers": 1}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


def named(options):
    return " ".join(f"{name} {value}" for name, value in options.items()) or "no workers"


class Numbers(Dataset):
    def __init__(self, size=10):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor(index)


class Together(Numbers):
    """Reads the samples of a batch at once."""

    def __getitem__(self, index):
        raise AssertionError("it was asked one by one")

    def __getitems__(self, indices):
        return [torch.tensor(index) for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, 10, step)


class Where(Callback):
    """Replaces each sample with the arguments that its handler received."""

    def on_sample(self, sample, index, epoch, mode, batch_idx, worker, settings):
        modes = [None, "train", "val", "pred"]
        return Replace(torch.tensor([sample, index, epoch, modes.index(mode), batch_idx, settings["strength"]]))

    def on_batch_made(self, batch, indices, batch_idx):
        if indices is not None:
            assert batch.reshape(-1, 6)[:, 1].tolist() == (indices if isinstance(indices, list) else [indices])
        assert set(batch.reshape(-1, 6)[:, 4].tolist()) == {batch_idx}
        return Replace((batch, "made"))


def expected(epoch, mode, strength, batch_size=4):
    return [[number, number, epoch, mode, number // (batch_size or 1), strength] for number in range(10)]


def read(loader):
    batches = list(loader)
    assert {word for _, word in batches} == {"made"}
    return torch.cat([batch.reshape(-1, 6) for batch, _ in batches]).tolist()


@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("options", WORKERS, ids=named)
def test_handlers_get_index_epoch_mode_and_batch_in_every_pass(options, batch_size):
    check_passes(Numbers(), batch_size, **options)


@pytest.mark.parametrize("options", [{}, WORKERS[-1]], ids=named)
@pytest.mark.parametrize(
    "dataset",
    [
        Subset(Numbers(20), range(10)),
        ConcatDataset([Numbers(10), Numbers(2)]),
        SeededSamples(Numbers()),
        Together(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_handlers_work_with_every_kind_of_dataset(dataset, options):
    check_passes(dataset, 4, **options)


def check_passes(dataset, batch_size, **options):
    loader = HookedLoader(dataset, batch_size, callbacks=[Where()], settings={"strength": 0}, sampler=range(10), **options)
    for number in (1, 2, 3):
        loader.set_epoch(number)
        loader.settings["strength"] = 10 * number
        assert read(loader) == expected(number, 0, 10 * number, batch_size)


@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("options", WORKERS, ids=named)
def test_samples_of_a_stream_are_counted_in_each_worker(options, batch_size):
    loader = HookedLoader(Stream(), batch_size, callbacks=[Where()], settings={"strength": 0}, **options)
    workers = options.get("num_workers", 1)
    for number in (1, 2):
        loader.set_epoch(number)
        loader.settings["strength"] = number
        rows = read(loader)
        assert sorted(row[0] for row in rows) == list(range(10))
        assert all(row[1:4] == [row[0] // workers, number, 0] and row[5] == number for row in rows)
        if batch_size is None:
            assert [row[4] for row in rows] == list(range(10))


SPAWNED = """
import sys, torch
from torch.utils.data import DataLoader, IterableDataset
from hookpoint import Callback, HookedLoader, Replace

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))

class Add(Callback):
    def on_sample(self, sample, epoch, settings):
        return Replace(sample + 10 * epoch + settings["strength"])

if __name__ == "__main__":
    for data in (list(range(4)), Stream())[: int(sys.argv[1])]:
        loader = HookedLoader(
            data, 2, callbacks=[Add()], settings={"strength": 0}, num_workers=1, persistent_workers=True,
            multiprocessing_context="spawn",
        )
        for epoch in (1, 2):
            loader.set_epoch(epoch)
            loader.settings["strength"] = 100 * epoch
            assert torch.cat(list(loader)).tolist() == [110 * epoch + number for number in range(4)], epoch
"""


def test_spawned_workers_get_the_epoch_and_the_settings(tmp_path, sample):
    script = tmp_path / "train.py"
    script.write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, "-W", "error", script, sample("1", "2")], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr


def seen_in(batches):
    return [tuple(row[2:]) for batch, _ in batches for row in batch.tolist()]


@pytest.mark.parametrize("options", WORKERS, ids=named)
def test_a_run_sets_the_epoch_and_the_mode_of_each_pass(options):
    loader = HookedLoader(Numbers(4), 2, callbacks=[Where()], settings={"strength": 5}, **options)
    seen = {}
    with Loop([], extra_callbacks=[], monitors=[]) as run:
        for epoch in run.epochs(2):
            seen["train", epoch] = seen_in(run.batches(loader))
            seen["val", epoch] = seen_in(run.batches(loader, mode="val"))
            seen["by hand", epoch] = seen_in(loader)
    for epoch in (1, 2):
        for mode, number in (("train", 1), ("val", 2), ("by hand", 0)):
            assert seen[mode, epoch] == [(epoch, number, index // 2, 5) for index in range(4)]
    loader.set_epoch(7)
    assert seen_in(loader) == [(7, 0, index // 2, 5) for index in range(4)]


def test_a_validation_in_the_middle_of_a_pass_has_its_own_mode_and_settings():
    loader = HookedLoader(Numbers(6), 2, callbacks=[Where()], settings={"strength": 5}, num_workers=1, prefetch_factor=3)
    seen = []
    with Loop([], extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            for number, batch in enumerate(run.batches(loader)):
                seen += seen_in([batch])
                if number == 1:
                    loader.settings["strength"] = 6
                    assert seen_in(run.batches(loader, mode="val")) == [(1, 2, index // 2, 6) for index in range(6)]
    assert seen == [(1, 1, index // 2, 5) for index in range(6)]


@pytest.mark.thin(8)
@pytest.mark.parametrize("options", WORKERS, ids=named)
@pytest.mark.parametrize("dataset", [Numbers(), Stream()], ids=["index", "stream"])
@pytest.mark.parametrize("listens", [True, False], ids=["heard", "unheard"])
def test_a_hooked_loader_yields_the_same_batches_as_a_dataloader(dataset, options, listens):
    shuffles = {} if isinstance(dataset, Stream) else {"shuffle": True}
    results = []
    for kind, more in ((DataLoader, {}), (HookedLoader, {"callbacks": [LambdaCallback(on_sample=lambda: None)] * listens})):
        torch.manual_seed(4)
        loader = kind(dataset, batch_size=3, drop_last=True, **shuffles, **options, **more)
        passes = [torch.cat(list(loader)).tolist() for _ in range(2)]
        results.append((passes, torch.rand(1).item(), None if isinstance(dataset, Stream) else len(loader)))
    assert results[0] == results[1]


def test_a_loader_without_callbacks_reads_the_dataset_directly():
    data = Numbers()
    iterator = iter(HookedLoader(data, 2))
    assert iterator._dataset is data
    assert type(iterator._index_sampler).__name__ == "BatchSampler"


def test_dataset_and_batch_sampler_are_the_users_objects():
    data, sampler = Numbers(), [[1, 2], [0]]
    loader = HookedLoader(data, batch_sampler=sampler, callbacks=[LambdaCallback(on_sample=lambda: None)])
    assert [batch.tolist() for batch in loader] == sampler
    assert loader.dataset is data
    assert loader.batch_sampler is sampler


@pytest.mark.parametrize("options", WORKERS[:3], ids=named)
def test_a_custom_collate_fn_runs_before_on_batch_made(options):
    made = LambdaCallback(on_batch_made=lambda batch: Replace((*batch, "made")))
    loader = HookedLoader(Numbers(4), 2, collate_fn=tuple, callbacks=[made], **options)
    assert list(loader) == [(0, 1, "made"), (2, 3, "made")]


def _shift(worker):
    get_worker_info().dataset.size = 3 + worker


class Sized(Numbers):
    def __getitem__(self, index):
        return self.size


def test_worker_init_fn_gets_the_users_dataset():
    heard = [LambdaCallback(on_sample=lambda: None)]
    loader = HookedLoader(Sized(4), 2, num_workers=2, worker_init_fn=_shift, callbacks=heard)
    assert torch.cat(list(loader)).tolist() == [3, 3, 4, 4]


# Random numbers


class Noise(Callback):
    def on_sample(self, sample):
        return Replace([sample.item(), random.random(), torch.rand(1).item()])

    def on_batch_made(self, batch):
        return Replace([*batch, random.random()])


class Noisy(Numbers):
    def __getitem__(self, index):
        return torch.rand(1)


def test_handlers_draw_from_the_seed_of_the_sample():
    def drawn(epoch, dataset=None, **options):
        dataset = Noisy(6) if dataset is None else dataset
        loader = HookedLoader(SeededSamples(dataset, seed=3), 2, collate_fn=list, callbacks=[Noise()], **options)
        loader.set_epoch(epoch)
        return list(loader)

    torch.manual_seed(1)
    first = drawn(1)
    torch.manual_seed(2)
    state = torch.get_rng_state(), random.getstate()
    assert [drawn(1, **options) for options in WORKERS[1:]] == [first] * 3
    assert drawn(2) != first
    torch.set_rng_state(state[0])
    numbers = [number for *samples, last in first for number in [last, *(one for sample in samples for one in sample)]]
    assert len(set(numbers)) == len(numbers) == 21
    assert random.getstate() == state[1]


# Errors


class Fails(Callback):
    def on_sample(self, index):
        if index == 3:
            raise ValueError("not this one")


@pytest.mark.parametrize("options", WORKERS[:3], ids=named)
def test_an_error_names_the_callback_the_sample_and_the_worker(options):
    loader = HookedLoader(Numbers(), 2, callbacks=[Fails()], **options)
    loader.set_epoch(4)
    with pytest.raises(ValueError, match="not this one") as caught:
        list(loader)
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    workers = options.get("num_workers", 0)
    where = f"worker {1 % workers}" if workers else "in the main process"
    assert f"in callback Fails at on_sample (index 3, batch 1 of epoch 4, {where})" in said
    assert ("Caught ValueError in DataLoader worker process" in said) is bool(workers)


def test_callbacks_are_checked_when_the_loader_is_created():
    with pytest.raises(NotACallback, match="has neither on_sample nor on_batch_made"):
        HookedLoader(Numbers(), callbacks=[LambdaCallback(on_epoch_end=lambda: None)])


def test_run_attributes_raise_in_a_worker():
    class Asks(Callback):
        def on_sample(self, sample):
            return Replace(self.epoch_num)

    asks = Asks()
    loader = HookedLoader(Numbers(), 2, callbacks=[asks], num_workers=1)
    message = "Asks.epoch_num exists only during a run"
    with pytest.raises(Exception, match=message), Loop([asks], extra_callbacks=[], monitors=[]) as run:
        list(run.batches(loader))


# A runner


class Strong(Callback):
    def on_sample(self, sample, settings):
        return Replace((sample[0] * settings["strength"], sample[1]))


class Stronger(Strong):
    def on_epoch_end(self, run):
        run.train_loader.settings["strength"] += 1.0


@pytest.mark.parametrize("options", WORKERS, ids=named)
def test_a_runner_trains_on_replaced_samples(options):
    stronger, seen = Stronger(), []
    samples = [(torch.ones(2), torch.zeros(1))] * 4
    loader = HookedLoader(samples, 2, callbacks=[stronger], settings={"strength": 1.0}, **options)
    model = nn.Linear(2, 1)
    watch = LambdaCallback(on_train_iter_begin=lambda run, batch: seen.append((run.epoch, batch[0][0, 0].item())))
    runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), callbacks=[stronger, watch])
    runner.fit(loader, epochs=3)
    assert seen == [(1, 1.0), (1, 1.0), (2, 2.0), (2, 2.0), (3, 3.0), (3, 3.0)]


def test_a_setting_can_be_scheduled_as_a_hyper_parameter():
    seen = []
    loader = HookedLoader([(torch.ones(2), torch.zeros(1))] * 4, 2, callbacks=[Strong()], settings={"strength": 1.0})
    model = nn.Linear(2, 1)
    watch = LambdaCallback(on_train_iter_begin=lambda batch: seen.append(batch[0][0, 0].item()))
    begin = LambdaCallback(on_run_begin=lambda run: run.hyper.register(loader.settings.param("strength")))
    setter = ScheduledHyperParamSetter("strength", [(1, 4.0)])
    runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), callbacks=[begin, watch, setter])
    runner.fit(loader, epochs=2)
    assert seen == [1.0, 1.0, 4.0, 4.0]


class Steps(Callback):
    """Replaces each batch with the number of iterations done before its loading began."""

    def on_batch_made(self, batch, settings):
        return Replace(torch.full((len(batch),), settings["steps"]))

    def on_train_iter_end(self, run):
        run.store["loader"].settings["steps"] = run.iteration


@pytest.mark.parametrize(
    ("options", "ahead"), [({}, 0), ({"num_workers": 1}, 2), ({"num_workers": 1, "prefetch_factor": 4}, 4)]
)
def test_a_setting_per_batch_applies_to_the_next_batch_to_be_loaded(options, ahead):
    steps = Steps()
    loader = HookedLoader(torch.arange(16), 2, callbacks=[steps], settings={"steps": 0}, settings_per="batch", **options)
    with Loop([steps], extra_callbacks=[]) as run:
        run.store["loader"] = loader
        for _ in run.epochs(2):
            first = run.iteration
            found = [batch[0].item() for batch in run.batches(loader)]
            assert found == [first + max(0, number - ahead) for number in range(8)]


def test_settings_apply_from_the_next_pass_by_default():
    steps = Steps()
    loader = HookedLoader(torch.arange(6), 2, callbacks=[steps], settings={"steps": 0})
    with Loop([steps], extra_callbacks=[]) as run:
        run.store["loader"] = loader
        assert [[batch[0].item() for batch in run.batches(loader)] for _ in run.epochs(2)] == [[0, 0, 0], [3, 3, 3]]


def test_an_invalid_settings_per_raises():
    with pytest.raises(BadLoop, match="settings_per must be 'pass' or 'batch', got 'step'"):
        HookedLoader([1], settings_per="step")
