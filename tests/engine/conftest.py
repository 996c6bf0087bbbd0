"""What the tests of the engine share: a small model, data for it, and runners over both, made the same way every time."""

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


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The models are tiny, and threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def generators():
    """Leave every generator as it was found, whatever a test draws."""
    with rng_kept():
        yield


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch):
    """The numbers are compared with those of bare loops on the host, also where there is a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def net():
    """Make a model of one layer, or the one that is given, and an optimizer for it."""

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
    """Make a runner over the small model; `runner.model` and `runner.optimizer` are there to be looked at."""

    def make(*callbacks, model=None, criterion=nn.functional.mse_loss, **options):
        model, optimizer = net(model)
        return Runner(model, options.pop("optimizer", optimizer), criterion, callbacks=callbacks, **options)

    return make


@pytest.fixture
def noise():
    """Make batches of noise, four numbers in and one out; a sample of each `bad` one is not finite."""

    def make(number=5, *, bad=(), value=math.nan):
        made = [(torch.randn(4, 4), torch.randn(4, 1)) for _ in range(number)]
        for place in bad:
            made[place][0][0] = value
        return made

    return make


@pytest.fixture(scope="session")
def distance():
    """A metric: how far outputs are from their targets."""
    return lambda outputs, targets: (outputs - targets).abs().mean()


@pytest.fixture(autouse=True)
def no_workers_left():
    """End the workers of loaders that a test leaves behind: collected as garbage, each waits five seconds for them."""
    yield
    if multiprocessing.active_children():
        for one in gc.get_objects():
            if isinstance(one, _MultiProcessingDataLoaderIter):
                one._shutdown_workers()
