"""A resumed run sees the same batches as a bare loop, in the current epoch and in all later epochs."""

from __future__ import annotations

import io
import random
import warnings
import weakref
from functools import partial

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
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hookpoint import Loop
from hookpoint.callbacks import ModelSaver
from hookpoint.engine.data.data_position import TorchPositions
from hookpoint.engine.data.rng import TorchRandomness, seed_all
from hookpoint.engine.data.seeded_samples import SeededSamples

SAMPLES, BATCH, EPOCHS = 11, 3, 3
FEW_PLACES = {(1, 2), (2, None), (2, 3)}
WORKERS_WARNING = (
    "random numbers that workers draw inside the dataset are not restored; if the dataset draws any, "
    "wrap it in hookpoint.SeededSamples"
)
STREAM_WARNING = (
    "random numbers that workers draw inside the dataset are not restored; if the dataset draws any, seed them in its __iter__"
)
IN_ORDER_WARNING = "workers deliver batches in any order (in_order=False): a resumed run may repeat or skip some"


# Data that can be identified, and counts its reads


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


# Custom samplers


class Shuffled(Sampler):
    """Draws a permutation from Python or NumPy once per pass, in `iter` or with the first index."""

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
    """Draws each index when it is needed."""

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
    """Counts its own epochs, as some reproducible samplers do."""

    def __init__(self, at_end):
        self.at_end, self.epoch, self.note = at_end, 0, None

    def __iter__(self):
        self.epoch += not self.at_end
        self.note = f"epoch {self.epoch}"
        yield from torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.epoch += self.at_end

    def __len__(self):
        return SAMPLES


class SeedsItself(Sampler):
    """Seeds its generator for each pass: from a counter, or from the generator itself."""

    def __init__(self, counts):
        self.counts, self.epoch, self.generator = counts, 0, torch.Generator().manual_seed(5)

    def __iter__(self):
        drawn = int(torch.randint(2**31, (), generator=self.generator))
        self.generator.manual_seed(self.epoch if self.counts else drawn)
        yield from torch.randperm(SAMPLES, generator=self.generator).tolist()
        self.epoch += 1

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
    "replacement": lambda **o: loader_of(sampler=RandomSampler(range(SAMPLES), replacement=True, num_samples=40), **o),
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
    "seeds itself from a count": lambda **o: loader_of(sampler=SeedsItself(True), **o),
    "seeds itself from itself": lambda **o: loader_of(sampler=SeedsItself(False), **o),
    "distributed": lambda **o: loader_of(sampler=DistributedSampler(range(SAMPLES), num_replicas=2, rank=1), **o),
}
ONE_BY_ONE = {
    "python": lambda **o: loader_of(sampler=OneByOne(random.random), **o),
    "numpy": lambda **o: loader_of(sampler=OneByOne(np.random.rand), **o),
    "torch": lambda **o: loader_of(sampler=OneByOne(lambda: torch.rand(1).item()), **o),
}


# A minimal run: epochs of batches, with training that draws random numbers after each batch


def plain(batch):
    return batch.tolist()


def through_a_file(state):
    """Return a state after a round trip through a file that cannot run code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Script:
    """A run: a loader, what the training draws after each batch, and what happens before and after an epoch."""

    def __init__(self, make, train=draws, before=lambda loader, epoch: None, after=lambda loader, visit: None):
        self.make, self.train, self.before, self.after = make, train, before, after

    def bare(self):
        """Return what a bare loop sees: the batches, each with what the training draws after it."""
        seed_all(3)
        loader = self.make()
        seen = []
        for epoch in range(1, EPOCHS + 1):
            self.before(loader, epoch)
            seen += [(epoch, plain(batch), self.train()) for batch in loader]
            self.after(loader, iter)
        return seen

    def process(self, found=None):
        """Run, from a state if one is given; after each batch and epoch, yield everything seen so far and the state."""
        randomness = TorchRandomness()
        positions = TorchPositions(randomness)
        positions.remembers = True
        seed_all(3)
        if found is not None:
            draws()  # a new process: the generators have any state
        loader = self.make()
        seen, epoch, batches = [], 1, None

        def state():
            place = {"epoch": epoch, "batches": batches}
            return through_a_file({"data": positions.state_dict(), "rng": randomness.state_dict(), **place})

        if found is not None:
            epoch, batches = found["epoch"], found["batches"]
            positions.load_state_dict(found["data"])
            if batches is None:
                randomness.load_state_dict(found["rng"])
        else:
            yield seen, state
        while epoch <= EPOCHS:
            self.before(loader, epoch)
            if batches is None:
                iterator, batches = positions.begin(loader, epoch), 0
                yield seen, state
            else:
                iterator = positions.resume(loader, epoch, batches, found["data"]).source
                randomness.load_state_dict(found["rng"])
            for batch in iterator:
                batches += 1
                seen.append((epoch, plain(batch), self.train()))
                yield seen, state
            self.after(loader, positions.visit)
            epoch, batches = epoch + 1, None
            yield seen, state

    def check(self, places=None):
        """Check that a run resumed from any position sees the rest; `places` are pairs of (epoch, batches)."""
        expected = self.bare()
        kept = [(len(seen), state()) for seen, state in self.process()]
        for number, found in kept:
            if places is None or (found["epoch"], found["batches"]) in places:
                assert self.rest(found) == expected[number:], (found["epoch"], found["batches"])

    def rest(self, found):
        """Return what a run resumed from a state sees."""
        return [[], *(seen for seen, _ in self.process(found))][-1]

    def check_in_pieces(self, batches):
        """Check that a run that is interrupted repeatedly, and resumed from its newest state, sees the same as a bare loop."""
        expected, found, seen_before = self.bare(), None, []
        while len(seen_before) < len(expected):
            process = self.process(found)
            seen, state = next((place for place in process if len(place[0]) == batches), ([], None))
            seen_before += seen
            if state is None:
                break
            found = state()
            process.close()
        assert seen_before == expected


# In one process


@pytest.mark.thin(8)
@pytest.mark.parametrize("kind", LOADERS)
def test_a_run_resumes_from_every_position(kind):
    Script(LOADERS[kind]).check()


@pytest.mark.thin(9)
@pytest.mark.parametrize("kind", LOADERS)
def test_a_run_can_be_interrupted_after_every_batch(kind):
    Script(LOADERS[kind]).check_in_pieces(1)


@pytest.mark.parametrize("kind", ["sequential", "shuffled", "generator", "own generators"])
def test_random_numbers_of_the_dataset_resume(kind):
    Script(lambda: LOADERS[kind](dataset=Noisy())).check()


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_indices_drawn_one_by_one_resume_from_the_generator_states(kind):
    Script(ONE_BY_ONE[kind]).check()


@pytest.mark.parametrize("kind", ["shuffled", "weighted, generator", "batch sampler", "no batches"])
def test_samples_before_the_checkpoint_are_not_read_again(kind):
    expected = Script(LOADERS[kind]).bare()
    for number, found in [(len(seen), state()) for seen, state in Script(LOADERS[kind]).process()]:
        data = Numbers()
        Script(partial(LOADERS[kind], dataset=data)).rest(found)
        left = [index for _, batch, _ in expected[number:] for index in np.ravel(batch).astype(int)]
        assert data.reads.tolist() == np.bincount(left, minlength=SAMPLES).tolist()


def test_a_generator_shared_with_the_training_is_restored():
    made = []

    def make():
        made.append(seeded())
        return loader_of(shuffle=True, generator=made[-1])

    Script(make, train=lambda: torch.rand(2, generator=made[-1]).tolist()).check()


class Doubling(DataLoader):
    """Creates its iterator for the first batch."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch * 2


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=["", "persistent"])
@pytest.mark.parametrize("seeds", [True, False])
def test_a_loader_that_creates_its_iterator_late_resumes(seeds, options):
    def make():
        return Doubling(Numbers(), batch_size=BATCH, shuffle=True, generator=seeded() if seeds else None, **options)

    Script(make).check(FEW_PLACES if options else None)


# The script's settings for each epoch are kept


def test_an_epoch_set_on_the_sampler_is_kept():
    def make():
        return loader_of(sampler=DistributedSampler(range(SAMPLES), num_replicas=1, rank=0))

    Script(make, before=lambda loader, epoch: loader.sampler.set_epoch(epoch)).check()


def test_a_generator_seeded_for_each_epoch_keeps_its_seed():
    script = Script(LOADERS["generator"], before=lambda loader, epoch: loader.generator.manual_seed(epoch))
    script.check({(1, 2), (2, 0), (2, 1), (3, None), (3, 2)})


def test_a_changed_batch_size_is_kept_after_a_resume():
    def batches(size, found=None):
        for seen, state in Script(partial(LOADERS["counts at the beginning"], batch_size=size)).process(found):
            yield [len(batch) for _, batch, _ in seen], state()

    states = [state for _, state in batches(3)]
    for found in (states[3], states[6]):
        assert {size for seen, _ in batches(5, found) for size in seen} <= {5, 1}


def test_a_loader_created_for_each_epoch_starts_from_its_own_seed():
    def passes(found=None, start=1):
        positions = TorchPositions(TorchRandomness())
        positions.remembers = True
        if found is not None:
            positions.load_state_dict(found)
        for epoch in range(start, EPOCHS + 1):
            loader = loader_of(shuffle=True, generator=seeded(0))
            seen = [plain(batch) for batch in positions.begin(loader, epoch)]
            yield seen, through_a_file(positions.state_dict())
            del loader

    whole = list(passes())
    assert whole[0][0] == whole[1][0] == whole[2][0]
    assert [seen for seen, _ in passes(whole[1][1], 3)] == [whole[2][0]]


def test_a_run_resumes_after_its_second_epoch_with_a_loader_that_is_made_for_each_epoch(tmp_path):
    def train(epochs, workdir=None):
        seen = []
        with Loop([] if workdir is None else [ModelSaver()], extra_callbacks=[], monitors=[], workdir=workdir) as run:
            for _ in run.epochs(epochs):
                loader = loader_of(shuffle=True, generator=seeded(0))
                seen += map(plain, run.batches(loader))
        return seen

    assert train(2, tmp_path) + train(3, tmp_path) == train(3)


@pytest.mark.parametrize("stop", [None, 6])
@pytest.mark.parametrize("at_end", [False, True])
def test_a_sampler_that_counts_epochs_resumes_in_a_new_process_after_several_runs_in_one(at_end, stop, tmp_path):
    def train(loader, epochs, workdir=None, stop=None):
        seen = []
        with Loop([] if workdir is None else [ModelSaver()], extra_callbacks=[], monitors=[], workdir=workdir) as run:
            for _ in run.epochs(epochs):
                for batch in run.batches(loader):
                    seen.append(plain(batch))
                    if run.iteration + 1 == stop:
                        run.stop()
        return seen

    first, second, other = (loader_of(sampler=Counting(at_end)) for _ in range(3))
    parts = train(first, 1, tmp_path) + train(first, 2, tmp_path, stop) + train(second, 3, tmp_path)
    assert parts == train(other, 3)


def test_two_alternating_loaders_both_resume():
    def passes(found=None, start=0):
        positions = TorchPositions(TorchRandomness())
        positions.remembers = True
        loaders = loader_of(shuffle=True, generator=seeded(8)), loader_of(shuffle=True, generator=seeded(9))
        if found is not None:
            positions.load_state_dict(found[1])
        for number in range(start, 2 * EPOCHS):
            loader, seen = loaders[number % 2], []
            if found is not None and number == start:
                iterator = positions.resume(loader, 1, found[0], found[1]).source
            else:
                iterator = positions.begin(loader, 1)
            for batch in iterator:
                seen.append(plain(batch))
                yield number, seen, (len(seen), positions.state_dict())

    expected = [(number, seen[-1]) for number, seen, _ in passes()]
    for place, (number, _, found) in enumerate(passes()):
        assert [(number, seen[-1]) for number, seen, _ in passes(found, number)] == expected[place + 1 :]


def test_two_loaders_resume_between_epochs():
    def epochs(found=None, start=1):
        positions = TorchPositions(TorchRandomness())
        positions.remembers = True
        loaders = loader_of(shuffle=True, generator=seeded(8)), loader_of(shuffle=True, generator=seeded(9))
        if found is not None:
            positions.load_state_dict(found)
        for epoch in range(start, EPOCHS + 1):
            seen = [plain(batch) for loader in loaders for batch in positions.begin(loader, epoch)]
            yield seen, positions.state_dict()

    whole = list(epochs())
    for epoch in (1, 2):
        assert [seen for seen, _ in epochs(whole[epoch - 1][1], epoch + 1)] == [seen for seen, _ in whole[epoch:]]


def test_a_validation_loader_is_not_mistaken_for_a_training_loader():
    def passes(found=None):
        positions = TorchPositions(TorchRandomness())
        positions.remembers = True
        train, val = loader_of(shuffle=True, generator=seeded(8)), loader_of(shuffle=True, generator=seeded(9))
        if found is None:
            list(positions.visit(val))  # an evaluation before the training, once
        else:
            positions.load_state_dict(found)
        for epoch in range(1 if found is None else 2, EPOCHS + 1):
            seen = [plain(batch) for batch in [*positions.begin(train, epoch), *positions.visit(val)]]
            yield seen, positions.state_dict()

    whole = list(passes())
    assert [seen for seen, _ in passes(whole[0][1])] == [seen for seen, _ in whole[1:]]


# With worker processes


def workers(number=2, persistent=False):
    return {"num_workers": number, "persistent_workers": persistent}


@pytest.mark.thin(2)
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("kind", ["shuffled", "generator", "replacement, generator", "python, eager"])
def test_a_run_with_workers_resumes(kind, persistent):
    Script(lambda: LOADERS[kind](**workers(persistent=persistent))).check(FEW_PLACES)


@pytest.mark.parametrize("kind", ["shuffled", "batch sampler, generator"])
def test_a_run_with_persistent_workers_can_be_interrupted_repeatedly(kind):
    Script(lambda: LOADERS[kind](**workers(1, persistent=True))).check_in_pieces(3)


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_indices_drawn_ahead_are_drawn_again_if_nothing_else_draws(kind):
    Script(lambda: ONE_BY_ONE[kind](**workers(1)), train=lambda: None).check({(1, 2), (2, 1)})


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 2)])
def test_the_number_of_workers_may_change(before, after):
    def make(number=0):
        sampler = RandomSampler(range(SAMPLES), replacement=True, num_samples=100, generator=seeded())
        return loader_of(sampler=sampler, batch_size=5, **(workers(number) if number else {}))

    expected = [(epoch, batch) for epoch, batch, _ in Script(make).bare()]
    process = Script(partial(make, before)).process()
    found = next(state() for seen, state in process if len(seen) == 31)  # a few batches before the sampler draws again
    process.close()
    assert [(epoch, batch) for epoch, batch, _ in Script(partial(make, after)).rest(found)] == expected[31:]


def test_validation_workers_do_not_change_the_training_order():
    made = {}

    def make():
        made["val"] = loader_of(shuffle=True, **workers(1, persistent=True))
        return loader_of(shuffle=True)

    Script(make, after=lambda loader, visit: [plain(batch) for batch in visit(made["val"])]).check()


def test_workers_do_not_reread_samples_before_the_checkpoint():
    reads = torch.zeros(SAMPLES, dtype=torch.int64).share_memory_()
    script = Script(lambda: loader_of(Numbers(reads), shuffle=True, **workers()))
    expected = script.bare()
    process = script.process()
    found = next(state() for seen, state in process if len(seen) == 6)
    process.close()
    reads.zero_()
    script.rest(found)
    left = [index for _, batch, _ in expected[6:] for index in batch]
    assert reads.tolist() == np.bincount(left, minlength=SAMPLES).tolist()


@pytest.mark.parametrize(
    ("dataset", "options", "place", "messages"),
    [
        (Numbers, workers(1), (2, 2), [WORKERS_WARNING]),
        (Numbers, workers(1), (2, None), []),  # new workers get the same seeds
        (Numbers, workers(1, persistent=True), (2, None), [WORKERS_WARNING]),
        (lambda: SeededSamples(Numbers()), workers(1, persistent=True), (2, 2), []),
        (lambda: Subset(SeededSamples(Numbers()), range(SAMPLES)), workers(1), (2, 2), []),
        (Numbers, {}, (2, 2), []),
        (Numbers, {**workers(1), "in_order": False}, (2, 2), [IN_ORDER_WARNING]),
    ],
)
def test_an_inexact_resume_warns_once(dataset, options, place, messages, caplog):
    script = Script(lambda: loader_of(dataset(), **options))
    found = {(state["epoch"], state["batches"]): state for state in (state() for _, state in script.process())}[place]
    assert caplog.messages == []
    script.rest(found)
    assert caplog.messages == messages


@pytest.mark.parametrize("options", [{}, workers(2), workers(2, persistent=True)], ids=["0", "2", "2 persistent"])
def test_seeded_samples_are_the_same_after_every_resume(options):
    def make(**more):
        return loader_of(SeededSamples(Noisy(), seed=5), sampler=RandomSampler(range(SAMPLES), generator=seeded()), **more)

    expected = []
    loader = make()
    for epoch in range(1, EPOCHS + 1):
        loader.dataset.set_epoch(epoch)
        expected += [(epoch, plain(batch)) for batch in loader]
    script = Script(lambda: make(**options))
    for number, found in [(len(seen), state()) for seen, state in script.process()]:
        if (found["epoch"], found["batches"]) in FEW_PLACES:
            assert [(epoch, batch) for epoch, batch, _ in script.rest(found)] == expected[number:]


# Data without an index


def test_batches_of_a_list_are_skipped_without_a_warning(caplog):
    Script(lambda: [torch.tensor(number) for number in range(5)]).check()
    assert caplog.messages == []


@pytest.mark.parametrize("options", [{}, workers(1)], ids=["", "worker"])
def test_skipping_batches_of_a_stream_is_logged(options, caplog):
    Script(lambda: loader_of(Stream(), **options)).check(FEW_PLACES)
    line = "reading and skipping the {} batches before the checkpoint, because DataLoader cannot start in the middle"
    assert caplog.messages == [line.format(2), line.format(3)]


def test_persistent_workers_of_a_stream_do_not_shift_other_draws(caplog):
    script = Script(lambda: loader_of(Stream(), **workers(1, persistent=True)))
    expected = [drawn for _, _, drawn in script.bare()]
    for number, found in [(len(seen), state()) for seen, state in script.process()]:
        if (found["epoch"], found["batches"]) in FEW_PLACES:
            assert [drawn for _, _, drawn in script.rest(found)] == expected[number:]
    assert STREAM_WARNING in caplog.messages


def test_an_iterable_with_a_generator_and_a_counter_resumes():
    class Rounds:
        def __init__(self):
            self.generator, self.rounds = np.random.default_rng(5), 0

        def __iter__(self):
            self.rounds += 1
            for _ in range(4):
                yield torch.tensor([self.rounds, self.generator.random(), torch.rand(1).item()])

    Script(Rounds).check()


@pytest.mark.parametrize("ends", ["stays at the end", "goes back to the beginning"])
def test_a_loader_with_a_state_dict_restores_its_own_position(ends, caplog):
    class Own:
        def __init__(self):
            self._place = [0, 0]  # no plain counter: only its state has the position

        def __len__(self):
            return 4

        def __iter__(self):
            if self._place[1] >= 4:
                self._place = [self._place[0] + 1, 0]
            while self._place[1] < 4:
                self._place[1] += 1
                yield torch.tensor(self._place)
            if ends == "goes back to the beginning":
                self._place = [self._place[0] + 1, 0]

        def state_dict(self):
            return {"place": list(self._place)}

        def load_state_dict(self, state):
            self._place = list(state["place"])

    Script(Own).check()
    assert caplog.messages == []


# Nothing to remember


@pytest.mark.parametrize("options", [{"drop_last": True}, {"drop_last": False}], ids=str)
def test_a_run_that_is_stopped_at_the_last_batch_resumes_with_the_next_order(options, tmp_path):
    """RandomSampler draws from its generator again when it is exhausted."""

    def train(workdir=None, stop=None):
        loader, seen = loader_of(shuffle=True, generator=seeded(), **options), []
        with Loop([] if workdir is None else [ModelSaver()], extra_callbacks=[], monitors=[], workdir=workdir) as run:
            for _ in run.epochs(EPOCHS):
                for batch in run.batches(loader):
                    seen.append(plain(batch))
                    if len(seen) == stop:
                        run.stop()
        return seen

    whole = train()
    assert train(tmp_path, stop=len(whole) // EPOCHS) + train(tmp_path) == whole


def test_nothing_is_remembered_without_checkpoints():
    positions = TorchPositions(TorchRandomness())
    loader = loader_of(SeededSamples(Numbers()), shuffle=True)
    list(positions.begin(loader, 2))
    list(positions.visit(loader))
    state = positions.state_dict()
    assert [state[name] for name in ("begun", "last", "loaders", "rest", "facts", "samples")] == [
        {},
        None,
        [],
        None,
        None,
        None,
    ]
    assert loader.dataset.epoch == 2


def test_a_resumed_pass_ends_if_the_dataset_has_shrunk():
    process = Script(LOADERS["sequential"]).process()
    found = next(state() for seen, state in process if len(seen) == 3)
    seen = Script(lambda: loader_of(Subset(Numbers(), range(4)))).rest(found)
    assert [(epoch, batch) for epoch, batch, _ in seen[:2]] == [(2, [0, 1, 2]), (2, [3])]


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize("had_iterator", [False, True])
def test_a_loader_is_freed_with_its_last_reference(batches, had_iterator):
    positions = TorchPositions(TorchRandomness())
    positions.remembers = True
    loader = loader_of(shuffle=True, **workers(1, persistent=True))
    list(positions.begin(loader, 1))
    if had_iterator:
        positions.begin(loader, 2)
    state = positions.state_dict()
    iterator = positions.resume(loader, 1, batches, state).source
    reference = weakref.ref(loader)
    del loader, iterator
    assert reference() is None


@pytest.mark.parametrize("batches", [None, 2])
def test_persistent_workers_stay_after_a_resume(batches):
    positions = TorchPositions(TorchRandomness())
    positions.remembers = True
    loader = loader_of(shuffle=True, **workers(1, persistent=True))
    list(positions.begin(loader, 1))
    state = positions.state_dict()
    loader = loader_of(shuffle=True, **workers(1, persistent=True))
    positions = TorchPositions(TorchRandomness())
    positions.remembers = True
    positions.load_state_dict(state)
    iterator = positions.begin(loader, 2) if batches is None else positions.resume(loader, 1, batches, state).source
    list(iterator)
    assert positions.begin(loader, 3) is iterator


def test_a_resumed_pass_has_the_length_of_the_whole_pass():
    positions = TorchPositions(TorchRandomness())
    positions.remembers = True
    loader = loader_of()
    positions.begin(loader, 1)
    assert len(positions.resume(loader, 1, 2, positions.state_dict()).source) == len(loader) == 4


# torchdata's loader


@pytest.fixture
def stateful():
    """Return torchdata's package, which calls a function that torch has deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")
        yield pytest.importorskip("torchdata.stateful_dataloader")


class Remembering(IterableDataset):
    """A stream with a state dict, which counts its passes and draws from its own generator.

    A loaded state applies to the next pass, even if it was taken at the end of a pass.
    """

    def __init__(self):
        self.generator, self.rounds, self.place, self.was_loaded = seeded(4), 0, 0, False

    def __iter__(self):
        if not self.was_loaded:
            self.rounds, self.place = self.rounds + 1, 0
        self.was_loaded = False
        while self.place < SAMPLES:
            self.place += 1
            yield torch.tensor([self.rounds, self.place, torch.rand(1, generator=self.generator).item()])

    def state_dict(self):
        return {"generator": self.generator.get_state(), "rounds": self.rounds, "place": self.place}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])
        self.rounds, self.place, self.was_loaded = state["rounds"], state["place"], True


class RememberingNumbers(Numbers):
    """A dataset with an index and a state: it counts reads."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __getitem__(self, index):
        self.count += 1
        return torch.tensor([index, self.count])

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.mark.parametrize("seeds", [False, True], ids=["", "generator"])
@pytest.mark.parametrize("options", [{}, workers(1), workers(1, persistent=True)], ids=["0", "1", "1 persistent"])
def test_a_stateful_loader_resumes_in_the_order_of_a_bare_loop(stateful, seeds, options):
    def make():
        generator = seeded() if seeds else None
        return stateful.StatefulDataLoader(Numbers(), batch_size=BATCH, shuffle=True, generator=generator, **options)

    # Not before the first pass: its sampler draws a seed when it is created, before the run knows the loader.
    places = {(epoch, batches) for epoch in (1, 2, 3) for batches in (None, *range(5))} - {(1, None)}
    Script(make).check(FEW_PLACES if options else places)


def test_a_stateful_loader_with_a_stateful_sampler_resumes(stateful):
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    def make():
        sampler = StatefulDistributedSampler(Numbers(), num_replicas=2, rank=0)
        return stateful.StatefulDataLoader(Numbers(), batch_size=2, sampler=sampler)

    Script(make, before=lambda loader, epoch: loader.sampler.set_epoch(epoch)).check()


def test_the_state_of_a_map_style_dataset_is_restored(stateful):
    Script(
        lambda: stateful.StatefulDataLoader(RememberingNumbers(), batch_size=BATCH, shuffle=True, generator=seeded())
    ).check()


@pytest.mark.parametrize("data", [Stream, Remembering])
@pytest.mark.parametrize("options", [{}, workers(1)], ids=["0", "1"])
def test_a_stateful_loader_over_a_stream_resumes(stateful, data, options):
    Script(lambda: stateful.StatefulDataLoader(data(), batch_size=BATCH, **options)).check(FEW_PLACES if options else None)


def test_a_stateful_loader_with_persistent_workers_resumes(stateful):
    Script(lambda: stateful.StatefulDataLoader(Remembering(), batch_size=BATCH, **workers(1, persistent=True))).check(
        FEW_PLACES | {(1, 4), (4, None)}
    )


@pytest.mark.parametrize("data", [Numbers, Stream])
def test_an_abandoned_pass_does_not_continue_in_the_next_epoch(stateful, data):
    def epochs(found=None):
        positions = TorchPositions(TorchRandomness())
        positions.remembers = True
        loader = stateful.StatefulDataLoader(data(), batch_size=BATCH)
        if found is not None:
            positions.load_state_dict(found)
        for epoch in range(1 if found is None else 2, 4):
            torch.manual_seed(epoch)
            iterator = positions.begin(loader, epoch)
            yield [plain(next(iterator)), plain(next(iterator))], through_a_file(positions.state_dict())

    whole = list(epochs())
    assert [seen for seen, _ in epochs(whole[0][1])] == [seen for seen, _ in whole[1:]]
