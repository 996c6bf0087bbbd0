"""Datasets that draw from their own random generators."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from hookpoint import Loop
from hookpoint import callbacks as cb

MAKE = {
    "numpy": lambda seed: np.random.default_rng(seed),
    "legacy": lambda seed: np.random.RandomState(seed),
    "python": random.Random,
    "torch": lambda seed: torch.Generator().manual_seed(seed),
}


def draw(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand(1, generator=generator).item()
    return generator.random() if hasattr(generator, "random") else generator.rand()


class Noisy(Dataset):
    def __init__(self, kind):
        self.kind, self.rng = kind, MAKE[kind](5)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index + draw(self.rng)


class Stream(IterableDataset):
    def __init__(self, kind):
        self.kind, self.rng = kind, MAKE[kind](5)

    def __iter__(self):
        yield from (index + draw(self.rng) for index in range(8))


def own(data, epoch):
    pass


def seeded(data, epoch):
    data.rng = MAKE[data.kind](epoch)


def reset(data, epoch):
    data.rng = MAKE[data.kind](5)


def same_loader(make):
    data = make()
    loader = DataLoader(data, batch_size=2, shuffle=None if isinstance(data, IterableDataset) else True)
    return lambda epoch: loader


def loader_for_each_epoch(make):
    data = make()
    return lambda epoch: DataLoader(data, batch_size=2, shuffle=True)


def subset_for_each_epoch(make):
    data = make()
    return lambda epoch: DataLoader(Subset(data, range(epoch, 8)), batch_size=2, shuffle=True)


def dataset_for_each_epoch(make):
    return lambda epoch: DataLoader(make(), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(3))


def train(workdir, make, before_epoch=own, epochs=4, stop=None, loaders=same_loader):
    """Return the batches of a run."""
    torch.manual_seed(1)
    loader_of, seen = loaders(make), []
    savers = [] if workdir is None else [cb.ModelSaver()]
    with Loop(savers, extra_callbacks=[], monitors=[], workdir=workdir) as run:
        for epoch in run.epochs(epochs):
            loader = loader_of(epoch)
            before_epoch(loader.dataset, epoch)
            for batch in run.batches(loader):
                seen.append(batch.tolist())
                if run.iteration + 1 == stop:
                    run.stop()
    return seen


@pytest.mark.parametrize("parts", [{"epochs": 2}, {"stop": 6}, {"stop": 1}])
@pytest.mark.parametrize("before_epoch", [own, seeded, reset])
@pytest.mark.parametrize("kind", MAKE)
def test_a_resumed_run_draws_the_same_numbers(kind, before_epoch, parts, tmp_path):
    whole = train(None, lambda: Noisy(kind), before_epoch)
    first = train(tmp_path, lambda: Noisy(kind), before_epoch, **parts)
    assert first + train(tmp_path, lambda: Noisy(kind), before_epoch) == whole


@pytest.mark.parametrize("part", [{"epochs": 2}, {"stop": 6}])
@pytest.mark.parametrize("kind", MAKE)
def test_a_new_process_draws_the_same_numbers_after_several_runs_in_one_process(kind, part, tmp_path):
    data = Noisy(kind)
    first = train(tmp_path, lambda: data, epochs=1) + train(tmp_path, lambda: data, **part)
    assert first + train(tmp_path, lambda: Noisy(kind)) == train(None, lambda: Noisy(kind))


@pytest.mark.parametrize("parts", [{"epochs": 2}, {"stop": 6}])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Subset(Noisy("numpy"), range(6)),
        lambda: ConcatDataset([Noisy("numpy"), Subset(Noisy("torch"), range(4))]),
        lambda: Stream("python"),
    ],
    ids=["subset", "concatenated", "stream"],
)
def test_generators_of_inner_datasets_and_of_streams_are_restored(make, parts, tmp_path):
    whole = train(None, make)
    assert train(tmp_path, make, **parts) + train(tmp_path, make) == whole


class FromThirdEpochOn(Noisy):
    epoch = 0

    def __getitem__(self, index):
        return super().__getitem__(index) if self.epoch >= 3 else float(index)


@pytest.mark.parametrize("epochs", [2, 3, 4])
def test_a_generator_that_is_first_used_in_a_later_epoch_is_restored(epochs, tmp_path):
    def make():
        return FromThirdEpochOn("numpy")

    def before_epoch(data, epoch):
        data.epoch = epoch

    whole = train(None, make, before_epoch, 5)
    assert train(tmp_path, make, before_epoch, epochs) + train(tmp_path, make, before_epoch, 5) == whole


@pytest.mark.parametrize("loaders", [loader_for_each_epoch, subset_for_each_epoch, dataset_for_each_epoch])
def test_a_script_may_create_its_loader_or_its_dataset_for_each_epoch(loaders, tmp_path):
    """The run resumes between two epochs, twice, and then in the middle of an epoch."""

    def make():
        return Noisy("numpy")

    options = {"loaders": loaders, "epochs": 5}
    cuts = ({"epochs": 2}, {"epochs": 3}, {"stop": 13}, {})
    assert [batch for cut in cuts for batch in train(tmp_path, make, **options | cut)] == train(None, make, **options)
