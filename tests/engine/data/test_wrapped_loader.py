"""Loaders that wrap a DataLoader and report its class, as Accelerate's do: runs resume in the middle of a pass."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hookpoint import Loop
from hookpoint import callbacks as cb
from hookpoint.core.errors import CannotResume


class Prepared:
    """Read a loader one batch ahead, and count the passes for samplers with an epoch, as Accelerate does."""

    def __init__(self, base):
        self.base_dataloader, self.iteration = base, 0

    def __getattr__(self, name):
        if name == "base_dataloader":
            raise AttributeError
        return getattr(self.base_dataloader, name)

    @property
    def __class__(self):
        return self.base_dataloader.__class__

    def state_dict(self):
        return self.missing  # only a stateful loader has one

    def load_state_dict(self, state):
        self.base_dataloader.load_state_dict(state)

    def __len__(self):
        return len(self.base_dataloader)

    def __iter__(self):
        if hasattr(self.base_dataloader.sampler, "set_epoch"):
            self.base_dataloader.sampler.set_epoch(self.iteration)
        batches = iter(self.base_dataloader)
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch
        self.iteration += 1


class ByEpoch(torch.utils.data.Sampler):
    def __init__(self, size):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(self.size, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def __len__(self):
        return self.size


def prepared(kind, batch_size=4):
    torch.manual_seed(0)
    data = TensorDataset(torch.arange(24))
    options = {"generator": {"shuffle": True, "generator": torch.Generator().manual_seed(1)}, "global": {"shuffle": True}}
    return Prepared(DataLoader(data, batch_size, **options.get(kind, {"sampler": ByEpoch(24)})))


def train(loader, workdir=None, stop_after=None):
    """Return the batches and a random number for each; with a workdir, save when the run stops after `stop_after` batches."""
    seen = []
    savers = [] if workdir is None else [cb.ModelSaver()]
    with Loop(savers, model=torch.nn.Linear(1, 1), workdir=workdir, extra_callbacks=[], monitors=[], control=False) as run:
        for _ in run.epochs(3):
            for (batch,) in run.batches(loader):
                seen.append((batch.tolist(), torch.rand(1).item()))
                if len(seen) == stop_after:
                    run.stop("enough")
    return seen


@pytest.mark.parametrize("kind", ["generator", "global", "epoch"])
def test_a_run_stopped_at_the_last_batch_resumes_with_the_next_pass(kind, tmp_path):
    """The wrapper counts a pass only when the batch after the last one is requested."""
    whole = train(prepared(kind))
    assert train(prepared(kind), tmp_path, 6) + train(prepared(kind), tmp_path) == whole


@pytest.mark.parametrize(("kind", "stop_after"), [("generator", 9), ("global", 2), ("epoch", 9)])
def test_a_run_resumes_in_the_middle_of_a_pass(kind, stop_after, tmp_path, caplog):
    whole = train(prepared(kind))
    first = train(prepared(kind), tmp_path, stop_after)
    rest = train(prepared(kind), tmp_path)
    assert len(whole) == 18
    assert first + rest == whole
    assert f"skipping the {stop_after % 6} batches before the checkpoint, because Prepared cannot" in caplog.text


def test_a_different_batch_size_in_the_middle_of_a_pass_raises(tmp_path):
    train(prepared("global"), tmp_path, 2)
    with pytest.raises(CannotResume, match="Prepared cannot resume in the middle of an epoch with a different batch size"):
        train(prepared("global", batch_size=6), tmp_path)
