"""TeamBatchSampler: every sample once, and the same number of batches on all ranks."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from hookpoint.core.errors import BadLoop
from hookpoint.parallel.data.sampler import TeamBatchSampler

SIZES = st.integers(1, 5)
BATCHES = st.integers(1, 7)


def team(length, batch_size, size, **options):
    return [TeamBatchSampler(length, batch_size, rank=rank, size=size, **options) for rank in range(size)]


def of_all(samplers):
    """Return the batches of all ranks, and check that they match."""
    rows = [list(sampler) for sampler in samplers]
    assert len({len(row) for row in rows}) == 1
    assert all(len(row) == len(sampler) - sampler.first for row, sampler in zip(rows, samplers, strict=True))
    for batches in zip(*rows, strict=True):
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
        assert all(batches)
    return rows


@given(length=st.integers(1, 200), batch_size=BATCHES, size=SIZES, shuffle=st.booleans(), epoch=st.integers(0, 9))
def test_ranks_share_every_sample_once_in_equal_numbers_of_batches(length, batch_size, size, shuffle, epoch):
    samplers = team(length, batch_size, size, shuffle=shuffle, seed=3)
    for one in samplers:
        one.set_epoch(epoch)
    seen = [index for row in of_all(samplers) for batch in row for index in batch]
    assert set(seen) == set(range(length))
    assert len(seen) == max(length, size)  # repeated only if there are fewer samples than ranks


@given(length=st.integers(1, 200), batch_size=BATCHES, size=SIZES)
def test_global_batches_equal_the_batches_of_one_process(length, batch_size, size):
    one = [set(batch) for batch in TeamBatchSampler(length, batch_size * size, shuffle=True, seed=1)]
    joint = [
        set().union(*batches) for batches in zip(*of_all(team(length, batch_size, size, shuffle=True, seed=1)), strict=True)
    ]
    assert joint[: len(joint) - 1] == one[: len(joint) - 1]  # a short batch may be joined to the last one


@given(data=st.data(), length=st.integers(1, 200), shuffle=st.booleans())
def test_no_sample_is_lost_or_repeated_if_the_number_of_ranks_changes(data, length, shuffle):
    seen, state, done = [], None, 0
    for _ in range(data.draw(st.integers(1, 4))):
        samplers = team(length, data.draw(BATCHES), data.draw(SIZES), shuffle=shuffle, seed=7)
        for one in samplers:
            one.set_epoch(2)
        if state is not None:
            done = {one.resume(state, done) for one in samplers}.pop()
        rows = [
            row[done - samplers[0].first :] for row in of_all(samplers)
        ]  # with the same number of ranks, the finished batches come first
        left = length - len(seen)
        if 0 < left < samplers[0].size:
            return  # the only case with repeated samples
        wanted = data.draw(st.integers(0, len(rows[0])))
        seen += [index for row in rows for batch in row[:wanted] for index in batch]
        done += wanted
        state = samplers[0].state_dict()
    one = TeamBatchSampler(length, 3, shuffle=shuffle)
    done = one.resume(state, done)
    seen += [index for batch in list(one)[done - one.first :] for index in batch]
    assert sorted(seen) == list(range(length))


@given(length=st.integers(0, 100), batch_size=BATCHES, size=SIZES, start=st.integers(0, 100))
def test_start_skips_the_samples_before_it(length, batch_size, size, start):
    start = min(start, length)
    seen = {index for row in of_all(team(length, batch_size, size, start=start)) for batch in row for index in batch}
    assert seen == set(range(start, length))


@given(length=st.integers(0, 100), batch_size=BATCHES, size=SIZES)
def test_drop_last_drops_short_batches(length, batch_size, size):
    rows = of_all(team(length, batch_size, size, drop_last=True))
    assert all(len(batch) == batch_size for row in rows for batch in row)
    assert len(rows[0]) == length // (batch_size * size)


def test_the_order_depends_on_the_seed_and_the_epoch():
    def order(seed, epoch):
        sampler = TeamBatchSampler(50, 50, shuffle=True, seed=seed)
        sampler.set_epoch(epoch)
        return next(iter(sampler))

    assert order(1, 1) == order(1, 1)
    assert order(1, 1) != order(1, 2)
    assert order(1, 1) != order(5, 1)


@pytest.mark.parametrize("given", [{"rank": 2, "size": 2}, {"size": 0}, {"batch_size": 0}, {"start": 11}, {"rank": -1}])
def test_invalid_arguments_raise(given):
    with pytest.raises(BadLoop, match="TeamBatchSampler: invalid"):
        TeamBatchSampler(**{"length": 10, "batch_size": 2, "size": 2, **given})


@given(length=st.integers(1, 60), batch_size=BATCHES, size=SIZES, drop_last=st.booleans(), has_own=st.booleans())
def test_the_order_equals_that_of_a_dataloader_in_one_process(length, batch_size, size, drop_last, has_own):
    def passes(loader_of):
        torch.manual_seed(4)
        generator = torch.Generator().manual_seed(5) if has_own else None
        loader = loader_of(generator)
        return [[index for batch in loader for index in batch] for _ in range(3)]

    def shared(generator):
        chief = TeamBatchSampler(length, batch_size, size=size, shuffle=True, drop_last=drop_last, generator=generator)
        others = [
            TeamBatchSampler(
                length, batch_size, rank=rank, size=size, shuffle=True, drop_last=drop_last, from_chief=lambda _: told[0]
            )
            for rank in range(1, size)
        ]
        return Joint(chief, others)

    class Joint(torch.utils.data.DataLoader):
        """The chief's loader, with the batches of the other ranks joined to its own."""

        def __init__(self, chief, others):
            chief.from_chief = self.tell
            self.others = others
            super().__init__(range(length), batch_sampler=chief, collate_fn=list, generator=chief.generator)

        def tell(self, drawn):
            told[:] = [drawn]
            return drawn

        def __iter__(self):
            self.batch_sampler.begin_pass()
            own = list(super().__iter__())
            with torch.random.fork_rng(devices=[]):
                for one in self.others:
                    one.begin_pass()
                rows = [own, *map(list, self.others)]
            return iter([list(chain(*batches)) for batches in zip(*rows, strict=True)])

    told = []
    options = {"shuffle": True, "drop_last": drop_last, "collate_fn": list}
    alone = passes(lambda own: torch.utils.data.DataLoader(range(length), batch_size * size, generator=own, **options))
    if length >= size:
        assert passes(shared) == alone
