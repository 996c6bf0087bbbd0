"""Resuming with data, batch sizes and settings that differ from the checkpoint."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SubsetRandomSampler, TensorDataset

from hookpoint import LambdaCallback, Loop, Runner
from hookpoint import callbacks as cb
from hookpoint.core.errors import CannotResume

LINE = "the batch size is {}, but was {}"
STATE = {"weights": torch.nn.Linear(1, 1)}  # without it, a loop with a saver and no model warns
INEXACT = "from here on, the run is not bitwise identical to the saved run"


@pytest.fixture(autouse=True)
def without_timings(caplog):
    """Drop lines about slow callbacks: they depend on how busy the machine is."""

    def is_kept(record):
        return "of the step" not in record.getMessage()

    caplog.handler.addFilter(is_kept)
    yield
    caplog.handler.removeFilter(is_kept)


def data_of(length=64, shift=0.0):
    inputs = torch.arange(float(length)).view(length, 1) + shift
    return TensorDataset(inputs, inputs * 2)


def fit(workdir, loader, epochs=2, stop=None, lr=0.001, order=1, resume="auto", **options):
    """Train a Runner; return the samples of each batch with its batch_idx, and the run."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    optimizer = torch.optim.Adam(list(model.parameters())[::order], lr=lr)
    seen = []
    look = LambdaCallback(on_train_iter_begin=lambda run: seen.append((run.batch_idx, run.batch[0].int().flatten().tolist())))
    runner = Runner(
        model,
        optimizer,
        torch.nn.functional.mse_loss,
        callbacks=[look] if workdir is None else [look, cb.ModelSaver()],
        extra_callbacks=[],
        monitors=[],
        workdir=workdir,
        seed=4,
        resume=resume,
        **options,
    )
    run = runner.fit(loader, epochs=epochs, max_steps=stop)
    return seen, run


def shuffled(size, data=None, **options):
    return DataLoader(data_of() if data is None else data, batch_size=size, shuffle=True, **options)


def samples(seen):
    return list(chain(*(batch for _, batch in seen)))


# A different batch size


@pytest.mark.parametrize(
    ("before", "after", "stop", "numbers"),
    [(8, 16, 4, [2, 3]), (16, 8, 2, [4, 5, 6, 7]), (8, 16, 3, [2, 3, 4]), (16, 24, 1, [1, 2]), (8, 64, 1, [1])],
)
def test_a_changed_batch_size_sees_every_sample_of_the_epoch_once(before, after, stop, numbers, tmp_path, caplog):
    whole, _ = fit(None, shuffled(before), epochs=1)
    first, _ = fit(tmp_path, shuffled(before), stop=stop)
    rest, run = fit(tmp_path, shuffled(after))
    in_epoch = rest[: len(numbers)]
    assert [number for number, _ in in_epoch] == numbers
    assert samples(first + in_epoch) == samples(whole)  # the order continues
    assert all(len(batch) == after for _, batch in in_epoch[:-1])
    assert sorted(samples(rest[len(numbers) :])) == list(range(64))
    assert run.iteration == run.step == stop + len(rest)
    lines = [record.message for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith(LINE.format(after, before))
    assert lines[0].endswith(INEXACT)


def test_a_run_with_another_batch_size_resumes_exactly(tmp_path, caplog):
    fit(tmp_path / "whole", shuffled(8), stop=3)
    fit(tmp_path / "parts", shuffled(8), stop=3)
    whole, run = fit(tmp_path / "whole", shuffled(16))
    first, _ = fit(tmp_path / "parts", shuffled(16), stop=4)
    second, _ = fit(tmp_path / "parts", shuffled(16), stop=5)
    caplog.clear()
    third, again = fit(tmp_path / "parts", shuffled(16))
    assert first + second + third == whole
    for one, other in zip(run.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not caplog.records
    fourth, _ = fit(tmp_path / "parts", shuffled(16), epochs=3)
    assert sorted(samples(fourth)) == list(range(64))


def test_the_batch_size_can_change_twice_in_one_epoch(tmp_path):
    first, _ = fit(tmp_path, shuffled(8), stop=3)
    second, _ = fit(tmp_path, shuffled(16), stop=4)
    third, _ = fit(tmp_path, shuffled(4), epochs=1)
    assert samples(first + second + third) == samples(fit(None, shuffled(64), epochs=1)[0])
    assert third[0][0] == 10


@pytest.mark.parametrize("workers", [0, 1])
def test_the_batch_size_can_change_with_custom_samplers_and_workers(workers, tmp_path):
    def loader(size):
        own = torch.Generator().manual_seed(2)
        sampler = SubsetRandomSampler(range(0, 64, 2), generator=own)
        return DataLoader(data_of(), batch_size=size, sampler=sampler, generator=own, num_workers=workers)

    whole, _ = fit(None, loader(4), epochs=1)
    first, _ = fit(tmp_path, loader(4), stop=3)
    rest, _ = fit(tmp_path, loader(8), epochs=1)
    assert samples(first + rest) == samples(whole)
    assert rest[0][0] == 2


def test_the_batch_size_can_change_with_a_sampler_that_draws_up_front(tmp_path):
    class Drawn(Sampler):
        def __iter__(self):
            return iter(torch.randperm(64).tolist())

        def __len__(self):
            return 64

    first, _ = fit(tmp_path, DataLoader(data_of(), 8, sampler=Drawn()), stop=3)
    rest, _ = fit(tmp_path, DataLoader(data_of(), 16, sampler=Drawn()), epochs=1)
    assert sorted(samples(first + rest)) == list(range(64))


def test_the_batch_size_can_change_with_drop_last_and_accumulation(tmp_path):
    first, _ = fit(tmp_path, shuffled(8, drop_last=True), stop=1, accumulate=3)
    rest, run = fit(tmp_path, shuffled(15, drop_last=True), epochs=1, accumulate=3)
    assert [number for number, _ in rest] == [2, 3]
    assert run.epoch_complete
    assert run.step == 2  # the last window is short, and the loader has a length
    assert len(set(samples(first + rest))) == 24 + 30


def test_the_batch_size_can_change_in_a_custom_loop(tmp_path, caplog):
    def train(size, stop=None):
        torch.manual_seed(6)
        model, seen = torch.nn.Linear(1, 1), []
        loader = shuffled(size)
        with Loop([cb.ModelSaver()], model=model, extra_callbacks=[], monitors=[], workdir=tmp_path) as run:
            for _ in run.epochs(1):
                for batch in run.batches(loader):
                    seen.append((run.batch_idx, batch[0].int().flatten().tolist()))
                    if len(seen) == stop:
                        run.stop()
                total = len(seen)
        return seen, run, total

    first, *_ = train(8, stop=5)
    rest, run, _ = train(16)
    assert [number for number, _ in rest] == [3, 4]
    assert sorted(samples(first + rest)) == list(range(64))
    assert run.iteration == 7
    assert LINE.format(16, 8) in caplog.text


class Stream(IterableDataset):
    def __init__(self, length=None):
        self.length = length

    def __iter__(self):
        return iter([(torch.tensor([float(number)]), torch.zeros(1)) for number in range(40)])


class Sized(Stream):
    def __len__(self):
        return 40


@pytest.mark.parametrize("kind", [Stream, Sized])
def test_the_batch_size_of_a_stream_can_change(kind, tmp_path, caplog):
    first, _ = fit(tmp_path, DataLoader(kind(), batch_size=4), stop=3, epochs=1)
    second, _ = fit(tmp_path, DataLoader(kind(), batch_size=8), stop=4, epochs=1)
    third, run = fit(tmp_path, DataLoader(kind(), batch_size=8), epochs=1)
    assert samples(first + second + third) == list(range(40))
    assert [number for number, _ in second + third] == [2, 3, 4, 5]
    assert run.epoch_complete
    assert caplog.text.count("the batch size is") == 1


def test_a_loader_that_cannot_be_split_into_different_batches_raises(tmp_path):
    fit(tmp_path, DataLoader(Stream(), batch_size=4, num_workers=1), stop=3)
    with pytest.raises(CannotResume, match="its samples cannot be split into different batches"):
        fit(tmp_path, DataLoader(Stream(), batch_size=8, num_workers=1))


def test_a_custom_batch_sampler_resumes_without_a_warning(tmp_path, caplog):
    def loader():
        return DataLoader(data_of(), batch_sampler=Own(range(64), 8, False))

    class Own(BatchSampler):
        pass

    first, _ = fit(tmp_path, loader(), stop=3, epochs=1)
    rest, _ = fit(tmp_path, loader(), epochs=1)
    assert samples(first + rest) == list(range(64))
    assert not [one for one in caplog.records if "batch size" in one.message]


@pytest.mark.parametrize("stop", [3, 9, 12])
def test_a_batch_size_changed_by_the_script_is_not_reported(stop, tmp_path, caplog):
    def train(workdir, stop=None):
        loader, seen = shuffled(8), []
        torch.manual_seed(5)
        with Loop([cb.ModelSaver()], extra_callbacks=[], monitors=[], workdir=workdir, state=STATE) as run:
            for epoch in run.epochs(2):
                if epoch == 2:
                    loader.batch_sampler.batch_size = 16
                for batch in run.batches(loader):
                    seen.append(batch[0].int().flatten().tolist())
                    if run.iteration + 1 == stop:
                        run.stop()
        return seen

    whole = train(tmp_path / "whole")
    assert train(tmp_path / "parts", stop) + train(tmp_path / "parts") == whole
    assert not caplog.records


def test_a_batch_size_changed_between_epochs_is_reported_once(tmp_path, caplog):
    fit(tmp_path, shuffled(8), epochs=1)
    rest, _ = fit(tmp_path, shuffled(16))
    assert [number for number, _ in rest] == [0, 1, 2, 3]
    assert [record.message for record in caplog.records] == [f"{LINE.format(16, 8)}: {INEXACT}"]


# Different data


def subset(drawn):
    return DataLoader(data_of(), batch_size=8, sampler=SubsetRandomSampler(range(drawn)))


CHANGES = {
    "shorter": (shuffled(8), shuffled(8, data_of(48)), "samples"),
    "longer": (shuffled(8), shuffled(8, data_of(80)), "samples"),
    "not shuffled": (shuffled(8), DataLoader(data_of(), batch_size=8), "order"),
    "shuffled": (DataLoader(data_of(), batch_size=8), shuffled(8), "order"),
    "another sampler": (shuffled(8), DataLoader(data_of(), batch_size=8, sampler=SubsetRandomSampler(range(64))), "order"),
    "fewer drawn": (subset(48), subset(40), "drawn"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_data_in_the_middle_of_an_epoch_raises(change, tmp_path):
    before, after, name = CHANGES[change]
    fit(tmp_path, before, stop=3)
    with pytest.raises(CannotResume, match=rf"(?s)saved in the middle of an epoch.*{name} .*refused: "):
        fit(tmp_path, after)
    seen, _ = fit(tmp_path, before, epochs=1)  # nothing was lost
    assert seen[0][0] == 3


@pytest.mark.parametrize("change", CHANGES)
def test_changed_data_between_epochs_warns(change, tmp_path, caplog):
    before, after, name = CHANGES[change]
    fit(tmp_path, before, epochs=1)
    seen, _ = fit(tmp_path, after)
    assert len(samples(seen)) == len(after.sampler)
    assert f"\n{name} " in caplog.text
    assert "warned: " in caplog.text
    caplog.clear()
    fit(tmp_path, after, epochs=3)
    assert not caplog.records


def test_a_sampler_that_changes_its_own_length_resumes(tmp_path, caplog):
    class Growing(SubsetRandomSampler):
        def __iter__(self):
            yield from list(super().__iter__())
            self.indices = [*self.indices, len(self.indices)]

    def loader():
        return DataLoader(data_of(), batch_size=1, sampler=Growing(range(4)))

    for stop in (10, None):  # in the third epoch, which has six samples
        fit(tmp_path, loader(), epochs=3, stop=stop)
    assert not caplog.records


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_sampler_that_draws_more_samples_in_each_epoch_is_not_reported(epochs, tmp_path, caplog):
    class Growing(Sampler):
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __len__(self):
            return 8 * self.epoch

        def __iter__(self):
            return iter(range(len(self)))

    def train(epochs):
        loader = DataLoader(data_of(), batch_size=8, sampler=Growing())
        with Loop([cb.ModelSaver()], workdir=tmp_path, extra_callbacks=[], monitors=[], state=STATE) as run:
            for epoch in run.epochs(epochs):
                loader.sampler.set_epoch(epoch)
                for _ in run.batches(loader):
                    pass
        return run.iteration

    assert (train(epochs), train(3)) == (epochs * (epochs + 1) / 2, 6)
    assert not caplog.records


@pytest.mark.parametrize("stop", [3, 8])
def test_a_dataset_with_different_values_warns(stop, tmp_path, caplog):
    fit(tmp_path, shuffled(8), stop=stop)
    fit(tmp_path, shuffled(8, data_of(shift=0.5)))
    assert "\ndataset " in caplog.text
    assert "is it the same data?" in caplog.text


def test_sequential_data_that_has_grown_resumes(tmp_path, caplog):
    fit(tmp_path, DataLoader(data_of(), batch_size=8), stop=3)
    seen, _ = fit(tmp_path, DataLoader(data_of(80), batch_size=8), epochs=1)
    assert samples(seen) == list(range(24, 80))
    assert "\nsamples " in caplog.text


def test_unchanged_data_is_not_reported(tmp_path, caplog):
    for stop in (3, 8, 11, None):
        fit(tmp_path, shuffled(8), stop=stop)
    assert not caplog.records


def test_data_that_varies_between_epochs_is_not_reported(tmp_path, caplog):
    def train(epochs):
        with Loop([cb.ModelSaver()], extra_callbacks=[], monitors=[], workdir=tmp_path, state=STATE) as run:
            for epoch in run.epochs(epochs):
                for _ in run.batches(range(3 + epoch % 2)):
                    pass

    train(2)
    train(4)
    assert not caplog.records


@pytest.mark.parametrize("stop", [2, 4])
def test_a_list_of_batches_with_a_different_length_warns(stop, tmp_path, caplog):
    def train(batches, stop=None):
        seen = []
        with Loop([cb.ModelSaver()], extra_callbacks=[], monitors=[], workdir=tmp_path) as run:
            for _ in run.epochs(2):
                for batch in run.batches(batches):
                    seen.append(batch)
                    if len(seen) == stop:
                        run.stop()
        return seen

    train([1, 2, 3, 4], stop)
    assert train([1, 2, 3, 4, 5])[-5:] == [1, 2, 3, 4, 5]
    assert "batches" in caplog.text
    assert "is it the same data?" in caplog.text


# A different optimizer


def test_parameters_in_a_different_order_raise(tmp_path):
    fit(tmp_path, shuffled(8), epochs=1)
    with pytest.raises(CannotResume, match=r"optimizer parameters  4 in 1 group \(\w+\)  4 in 1 group \(\w+\)  refused: "):
        fit(tmp_path, shuffled(8), order=-1)
    fit(tmp_path, shuffled(8))


def test_the_learning_rate_of_the_checkpoint_is_used_and_reported(tmp_path, caplog):
    fit(tmp_path, shuffled(8), epochs=1, lr=0.001)
    _, run = fit(tmp_path, shuffled(8), epochs=2, lr=0.01)
    assert run.optimizer.param_groups[0]["lr"] == 0.001
    assert len(caplog.records) == 1
    line = caplog.records[0].message
    assert line.startswith(
        "the script's learning rate is 0.01 (it was 0.001), but the run uses the learning rate in the checkpoint, 0.001."
    )
    caplog.clear()
    fit(tmp_path, shuffled(8), epochs=3, lr=0.01)
    assert not caplog.records  # already reported

    name, _, value = line.partition("write the line ")[2].partition(" to hyper.txt")[0].partition(": ")
    (tmp_path / "hyper.txt").write_text(f"{name}: {value}\n")
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    callbacks = [cb.ModelSaver(), cb.HumanHyperParamSetter("learning_rate")]
    options = {"callbacks": callbacks, "extra_callbacks": [], "monitors": [], "workdir": tmp_path, "seed": 4}
    Runner(model, optimizer, torch.nn.functional.mse_loss, **options).fit(shuffled(8), epochs=4)
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_a_scheduled_learning_rate_is_not_reported(tmp_path, caplog):
    def runner():
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        options = {"callbacks": [cb.ModelSaver()], "extra_callbacks": [], "monitors": [], "workdir": tmp_path, "seed": 4}
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return Runner(model, optimizer, torch.nn.functional.mse_loss, lr_scheduler=scheduler, **options)

    loader = DataLoader(data_of(8), batch_size=8)
    one = runner()
    one.fit(loader, epochs=1)
    one.fit(loader, epochs=2)
    runner().fit(loader, epochs=3)
    assert not caplog.records
