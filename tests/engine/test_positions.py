"""A run that goes on sees the batches that a bare loop would have seen, in this epoch and in all that follow."""

from __future__ import annotations

import gc
import io
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hookpoint.engine.positions import TorchPositions
from hookpoint.engine.randomness import TorchRandomness
from hookpoint.engine.rng import rng_kept, seed_all
from hookpoint.engine.seeded_samples import SeededSamples

SAMPLES, BATCH, EPOCHS = 11, 3, 3
WORKERS_WARNING = (
    "random numbers drawn inside the data set by worker processes are not restored; "
    "wrap it in hookpoint.SeededSamples if it draws any"
)


@pytest.fixture(autouse=True)
def generators():
    """Leave every generator as it was found."""
    with rng_kept():
        yield


# Data that can be told apart, and counts how often it is read


class Numbers(Dataset):
    def __init__(self, reads=None):
        self.reads = torch.zeros(SAMPLES, dtype=torch.int64) if reads is None else reads

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.reads[index] += 1
        return torch.tensor(index)


class Noisy(Numbers):
    """Draws from the global generators, as augmentation does."""

    def __getitem__(self, index):
        self.reads[index] += 1
        return torch.tensor([index, *draws()], dtype=torch.float64)


class Stream(IterableDataset):
    def __iter__(self):
        for number in range(SAMPLES):
            yield torch.tensor([number, torch.rand(1).item()])


def draws():
    return [random.random(), np.random.rand(), torch.rand(1).item()]


# Samplers that people write


class Shuffled(Sampler):
    """Asks Python or NumPy for a permutation once a pass, when it is asked for its iterator or for its first index."""

    def __init__(self, shuffle, eager):
        self.shuffle, self.eager = shuffle, eager

    def __iter__(self):
        return iter(self.indices()) if self.eager else self.later()

    def later(self):
        yield from self.indices()

    def indices(self):
        indices = list(range(SAMPLES))
        self.shuffle(indices)
        return indices

    def __len__(self):
        return SAMPLES


class OneByOne(Sampler):
    """Draws each index when it is asked for it."""

    def __init__(self, draw):
        self.draw = draw

    def __iter__(self):
        for _ in range(SAMPLES):
            yield int(self.draw() * SAMPLES)

    def __len__(self):
        return SAMPLES


class OwnGenerators(Sampler):
    """Holds generators of every kind, and a sampler that holds one."""

    def __init__(self):
        self.python = random.Random(1)
        self.legacy = np.random.RandomState(1)
        self.numpy = np.random.default_rng(1)
        self.torch = torch.Generator().manual_seed(1)
        self.parts = [RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(2))]

    def __iter__(self):
        for index in self.parts[0]:
            shift = self.python.random() + self.legacy.rand() + self.numpy.random() + torch.rand(1, generator=self.torch).item()
            yield int(index + shift * SAMPLES) % SAMPLES

    def __len__(self):
        return SAMPLES


class Counting(Sampler):
    """Counts its own epochs, as some do that are to be reproducible."""

    def __init__(self, at_end):
        self.at_end, self.epoch, self.note = at_end, 0, None

    def __iter__(self):
        self.epoch += not self.at_end
        self.note = f"epoch {self.epoch}"
        yield from torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.epoch += self.at_end

    def __len__(self):
        return SAMPLES


def seeded(number=7):
    return torch.Generator().manual_seed(number)


def loader_of(dataset=None, **options):
    if "batch_sampler" not in options:
        options.setdefault("batch_size", BATCH)
    return DataLoader(Numbers() if dataset is None else dataset, **options)


WEIGHTS = [1.0 + number % 3 for number in range(SAMPLES)]

LOADERS = {
    "sequential": lambda **o: loader_of(**o),
    "shuffled": lambda **o: loader_of(shuffle=True, **o),
    "generator": lambda **o: loader_of(shuffle=True, generator=seeded(), **o),
    "generator, last dropped": lambda **o: loader_of(shuffle=True, generator=seeded(), drop_last=True, **o),
    "generator of the loader only": lambda **o: loader_of(generator=seeded(), **o),
    "replacement": lambda **o: loader_of(sampler=RandomSampler(range(SAMPLES), replacement=True, num_samples=70), **o),
    "replacement, generator": lambda **o: loader_of(
        sampler=RandomSampler(range(SAMPLES), replacement=True, num_samples=70, generator=seeded()), batch_size=30, **o
    ),
    "weighted": lambda **o: loader_of(sampler=WeightedRandomSampler(WEIGHTS, SAMPLES), **o),
    "weighted, generator": lambda **o: loader_of(sampler=WeightedRandomSampler(WEIGHTS, SAMPLES, generator=seeded()), **o),
    "subset": lambda **o: loader_of(sampler=SubsetRandomSampler(range(2, 9)), **o),
    "list": lambda **o: loader_of(sampler=[3, 1, 4, 1, 5, 9, 2, 6], **o),
    "batch sampler": lambda **o: loader_of(batch_sampler=BatchSampler(RandomSampler(range(SAMPLES)), 4, False), **o),
    "batch sampler, generator": lambda **o: loader_of(
        batch_sampler=BatchSampler(RandomSampler(range(SAMPLES), generator=seeded()), 4, True), **o
    ),
    "no batches": lambda **o: loader_of(batch_size=None, shuffle=True, **o),
    "no batches, generator": lambda **o: loader_of(batch_size=None, sampler=RandomSampler(range(6), generator=seeded()), **o),
    "python, first index": lambda **o: loader_of(sampler=Shuffled(random.shuffle, eager=False), **o),
    "python, eager": lambda **o: loader_of(sampler=Shuffled(random.shuffle, eager=True), **o),
    "numpy, first index": lambda **o: loader_of(sampler=Shuffled(np.random.shuffle, eager=False), **o),
    "numpy, eager": lambda **o: loader_of(sampler=Shuffled(np.random.shuffle, eager=True), **o),
    "own generators": lambda **o: loader_of(sampler=OwnGenerators(), **o),
    "counts at the beginning": lambda **o: loader_of(sampler=Counting(at_end=False), **o),
    "counts at the end": lambda **o: loader_of(sampler=Counting(at_end=True), **o),
    "distributed": lambda **o: loader_of(sampler=DistributedSampler(range(SAMPLES), num_replicas=2, rank=1), **o),
}
ONE_BY_ONE = {
    "python": lambda **o: loader_of(sampler=OneByOne(random.random), **o),
    "numpy": lambda **o: loader_of(sampler=OneByOne(np.random.rand), **o),
    "torch": lambda **o: loader_of(sampler=OneByOne(lambda: torch.rand(1).item()), **o),
}


# A run in short: epochs of batches, with random numbers drawn by the training in between


def plain(batch):
    return batch.tolist()


def through_a_file(state):
    """Return a state as it comes back from a file that cannot run code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def bare(make, *, train=draws, between=lambda loader: None):
    """Return what a loop without anything sees: for each epoch, its batches with what the training draws after each."""
    seed_all(3)
    loader = make()
    seen = []
    for _ in range(EPOCHS):
        seen.append([(plain(batch), train()) for batch in loader])
        between(loader)
    return seen


def saved(make, *, train=draws, between=lambda loader: None, before=lambda loader, epoch: None):
    """Return what a run sees that can be saved, and its state at every place: (epoch, batches), None between epochs."""
    randomness = TorchRandomness()
    positions = TorchPositions(randomness)
    positions.remembers = True
    states = {}

    def keep(epoch, batches):
        states[epoch, batches] = through_a_file({"data": positions.state_dict(), "rng": randomness.state_dict()})

    seed_all(3)
    loader = make()
    keep(0, None)
    seen = []
    for epoch in range(1, EPOCHS + 1):
        before(loader, epoch)
        iterator = positions.begin(loader, epoch)
        keep(epoch, 0)
        seen.append([])
        for batch in iterator:
            seen[-1].append((plain(batch), train()))
            keep(epoch, len(seen[-1]))
        between(loader)
        keep(epoch, None)
    return seen, states


def resumed(make, state, epoch, batches, *, train=draws, between=lambda loader: None, before=lambda loader, epoch: None):
    """Return what is seen in a new process: a new loader, the generators anywhere."""
    seed_all(epoch * 100 + (batches or 0))
    randomness = TorchRandomness()
    positions = TorchPositions(randomness)
    positions.remembers = True
    loader = make()
    draws()
    positions.load_state_dict(state["data"])
    seen = []
    if batches is None:
        randomness.load_state_dict(state["rng"])
        epoch += 1
    else:
        before(loader, epoch)
    while epoch <= EPOCHS:
        if batches is None:
            before(loader, epoch)
            iterator = positions.begin(loader, epoch)
        else:
            iterator = positions.resume(loader, epoch, batches, state["data"])
            randomness.load_state_dict(state["rng"])
            batches = None
        seen.append([(plain(batch), train()) for batch in iterator])
        between(loader)
        epoch += 1
    return seen


def rest(seen, epoch, batches):
    """Return what is left to be seen from a place on."""
    return seen[epoch:] if batches is None else [seen[epoch - 1][batches:], *seen[epoch:]]


def check(make, places=None, **options):
    expected = bare(make, **{name: value for name, value in options.items() if name in ("train", "between")})
    seen, states = saved(make, **options)
    assert seen == expected
    for epoch, batches in places or states:
        got = resumed(make, states[epoch, batches], epoch, batches, **options)
        assert got == rest(expected, epoch, batches), (epoch, batches)


# In one process


@pytest.mark.parametrize("kind", LOADERS)
def test_every_place_is_found_back_to(kind):
    check(LOADERS[kind])


@pytest.mark.parametrize("kind", ["sequential", "shuffled", "generator", "own generators"])
def test_random_numbers_of_the_data_set_go_on_too(kind):
    check(lambda: LOADERS[kind](dataset=Noisy()))


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_indices_that_are_drawn_one_by_one_go_on_from_where_the_generators_stand(kind):
    check(ONE_BY_ONE[kind])


@pytest.mark.parametrize("kind", ["shuffled", "weighted, generator", "batch sampler", "no batches"])
def test_what_was_seen_is_not_read_again(kind):
    seen, states = saved(LOADERS[kind])
    for epoch, batches in [(1, 2), (2, 1), (3, len(seen[2])), (1, 0)]:
        reads = torch.zeros(SAMPLES, dtype=torch.int64)
        resumed(lambda reads=reads: LOADERS[kind](dataset=Numbers(reads)), states[epoch, batches], epoch, batches)
        left = [index for passed in rest(seen, epoch, batches) for batch, _ in passed for index in np.ravel(batch)]
        assert reads.tolist() == np.bincount(left, minlength=SAMPLES).tolist()


def test_a_generator_that_the_training_draws_from_too_is_put_where_it_was():
    made = []

    def make():
        made.append(seeded())
        return loader_of(shuffle=True, generator=made[-1])

    check(make, train=lambda: torch.rand(2, generator=made[-1]).tolist())


def test_two_loaders_that_take_turns_each_go_on():
    made = {}

    def make():
        made["other"] = loader_of(shuffle=True, generator=seeded(8))
        return loader_of(shuffle=True, generator=seeded(9))

    def epochs(start, first, second):
        return [[plain(batch) for batch in loader] for loader in (first, second) for _ in range(1)] if start else []

    seed_all(3)
    first = make()
    expected = [[plain(batch) for batch in loader] for _ in range(EPOCHS) for loader in (first, made["other"])]

    randomness = TorchRandomness()
    positions = TorchPositions(randomness)
    positions.remembers = True
    first = make()
    seen, states = [], []
    for epoch in range(1, EPOCHS + 1):
        for loader in (first, made["other"]):
            seen.append([])
            for batch in positions.begin(loader, epoch):
                seen[-1].append(plain(batch))
                states.append((len(seen), len(seen[-1]), through_a_file(positions.state_dict())))
    assert seen == expected

    for passes, batches, state in states:
        positions = TorchPositions(randomness)
        positions.remembers = True
        first = make()
        got = []
        for number in range(passes - 1, 2 * EPOCHS):
            loader = [first, made["other"]][number % 2]
            if number == passes - 1:
                got.append([plain(batch) for batch in positions.resume(loader, 1, batches, state)])
            else:
                got.append([plain(batch) for batch in positions.begin(loader, 1)])
        assert got == [expected[passes - 1][batches:], *expected[passes:]]
