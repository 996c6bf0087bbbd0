"""Fixtures for the engine's tests: a small model, data for it, and runners for both."""

from __future__ import annotations

import gc
import math
import multiprocessing

import pytest
import torch
from torch import nn
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from hookpoint.engine.data.rng import rng_kept
from hookpoint.engine.runner import Runner


@pytest.fixture(autouse=True)
def generators():
    """Restore every random generator after each test."""
    with rng_kept():
        yield


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch):
    """Run on the CPU: the numbers are compared with those of bare loops there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def net():
    """Return a model with one layer, or the given one, and an optimizer for it."""

    def make(model=None, lr=0.1, **options):
        if model is None:
            torch.manual_seed(0)
            model = nn.Linear(3, 2)
        return model, torch.optim.SGD(model.parameters(), lr=lr, **options)

    return make


@pytest.fixture
def batches():
    """Five batches of four samples, as a list."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)) for _ in range(5)]


@pytest.fixture
def runner(net):
    """Create a runner for the small model, with `runner.model` and `runner.optimizer`."""

    def make(*callbacks, model=None, criterion=nn.functional.mse_loss, **options):
        model, optimizer = net(model)
        return Runner(model, options.pop("optimizer", optimizer), criterion, callbacks=callbacks, **options)

    return make


@pytest.fixture
def noise():
    """Create batches of noise with four inputs and one target; a sample of each `bad` batch is not finite."""

    def make(number=5, *, bad=(), value=math.nan):
        made = [(torch.randn(4, 4), torch.randn(4, 1)) for _ in range(number)]
        for place in bad:
            made[place][0][0] = value
        return made

    return make


@pytest.fixture(scope="session")
def distance():
    """A metric: the distance of outputs from their targets."""
    return lambda outputs, targets: (outputs - targets).abs().mean()


@pytest.fixture(autouse=True)
def no_workers_left():
    """End the workers of loaders that a test leaves behind: garbage collection waits five seconds for each."""
    yield
    if multiprocessing.active_children():
        for one in gc.get_objects():
            if isinstance(one, _MultiProcessingDataLoaderIter):
                one._shutdown_workers()
