"""CUDA graphs replay the right steps and change no results. Here, without a GPU, a replay computes the step again.

`make test-gpu` checks the same with real CUDA graphs, on a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookpoint import Callback, Every, MainCallback, Runner, current_run, on
from hookpoint.callbacks import GradientStats, SwapEMAWeights
from hookpoint.core.errors import BadLoop
from hookpoint.core.run.run import now_of, stepper_of
from hookpoint.engine.fused import _copy_stream, _graph_options, _graph_stepper, _static_batch
from hookpoint.engine.fused.fused_step import FusedStep


class Recomputed:
    """A stand-in for a captured step: a replay computes the step that was captured, with the current batch."""

    captures = replays = 0
    runs_at_capture = False

    def __init__(self, work, parameters, adds, device, pool):
        type(self).captures += 1
        self.steps, self.parameters, self.adds = inspect.getclosurevars(work).nonlocals["steps"], parameters, adds
        self.gradients = [None] * len(parameters)
        if self.runs_at_capture:
            work()

    def bind_gradients(self, *, adds=False):
        for parameter, adds_here in zip(self.parameters, self.adds, strict=True):
            if not (adds or adds_here):
                parameter.grad = None

    def replay(self):
        type(self).replays += 1
        self.bind_gradients()
        run = current_run()
        now = now_of(run)
        stepper_of(run)._compute_step(run, now, steps=self.steps)
        self.results = [now.outputs, now.targets, now.loss], []

    def release(self):
        """Do nothing."""


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """Let a Runner on the CPU take the path of CUDA graphs."""
    Recomputed.captures = Recomputed.replays = 0
    for name in ("Stream", "Event", "current_stream", "default_stream", "graph_pool_handle", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(_graph_options, "_check_run", lambda *args: None)
    for module in (_graph_options, _graph_stepper):
        monkeypatch.setattr(module, "check_graph_optimizer", lambda optimizer: None)
    monkeypatch.setattr(_graph_stepper, "StepGraph", Recomputed)
    monkeypatch.setattr(_static_batch.StaticBatch, "check_device", lambda self, device: None)
    monkeypatch.setattr(_copy_stream, "move", lambda batch, device: batch)
    monkeypatch.setattr(FusedStep, "mover", lambda self: self._copies)
    _graph_stepper.stream_of.cache_clear()
    yield
    _graph_stepper.stream_of.cache_clear()


class Endless:
    """Data without a length."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


@pytest.fixture
def fit():
    def fit(*callbacks, cuda_graph, accumulate=1, has_length=True, scheduler=False, **options):
        """Train; return the weights and everything that was logged."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        data = TensorDataset(torch.randn(102, 6), torch.randint(3, (102,)))  # 13 batches, the last one smaller
        by_step = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50) if scheduler else None
        train = DataLoader(data, 8) if has_length else Endless(DataLoader(data, 8))
        runner = Runner(
            model,
            optimizer,
            nn.CrossEntropyLoss(),
            lr_scheduler=by_step,
            lr_scheduler_on="step",
            callbacks=callbacks,
            extra_callbacks=[],
            monitors=[],
            accumulate=accumulate,
            cuda_graph=cuda_graph,
            log_every=5,
            device="cpu",
            **options,
        )
        run = runner.fit(train, DataLoader(data, 8), epochs=3, validate_every=Every(steps=4))
        history = {name: run.monitors.get_history(name) for name in run.metrics}
        return [*model.state_dict().values()], history, run.step

    return fit


def assert_same(one, other):
    assert all(torch.equal(left, right) for left, right in zip(one[0], other[0], strict=True))
    assert one[1:] == other[1:]


class Skips(Callback):
    def on_train_iter_begin(self, run):
        if run.iteration in (12, 20):
            run.skip_step()
        if run.iteration == 9:
            run.skip_backward()
        if run.iteration == 15:
            run.skip_batch()


class SkipsFirst(Callback):
    def on_train_iter_begin(self, run):
        if run.iteration < 4:
            run.skip_step()


class LoadsAndCopies(Callback):
    def on_train_iter_begin(self, run):
        if run.iteration == 17:
            run.model.load_state_dict({name: value * 0.9 for name, value in run.model.state_dict().items()})

    def on_epoch_end(self, run):
        copy.deepcopy(run.model)


def measures():
    return [GradientStats(every=3), SwapEMAWeights(0.9)]


@pytest.mark.thin(6)
@pytest.mark.parametrize("has_length", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("callbacks", [list, measures, lambda: [SkipsFirst()], lambda: [LoadsAndCopies()]])
def test_weights_are_the_same_with_and_without_a_graph(fit, callbacks, accumulate, has_length):
    options = {"accumulate": accumulate, "has_length": has_length, "clip_grad_norm": 0.5}
    plain = fit(*callbacks(), cuda_graph=False, **options)
    assert_same(fit(*callbacks(), cuda_graph=True, **options), plain)
    assert Recomputed.replays > 15


def test_skips_are_honoured(fit):
    assert_same(fit(Skips(), cuda_graph=True), fit(Skips(), cuda_graph=False))


def test_the_step_is_captured_after_three_batches_and_then_replayed(fit):
    fit(cuda_graph=True)
    assert (Recomputed.captures, Recomputed.replays) == (1, 3 * 12 - 3)  # the smaller last batches run outside


def test_a_capture_waits_for_a_real_step(fit):
    fit(SkipsFirst(), cuda_graph=True)
    assert Recomputed.replays == 3 * 12 - 5  # four skipped steps count as computed, but not as steps


def test_accumulation_needs_three_graphs(fit):
    fit(cuda_graph=True, accumulate=4)
    assert Recomputed.captures == 3


def test_a_learning_rate_that_changes_at_each_step_warns_once(fit, caplog):
    plain = fit(cuda_graph=False, scheduler=True)
    assert_same(fit(cuda_graph=True, scheduler=True), plain)
    said = "each change to the learning rate of SGD requires a new capture of the step; fused=True avoids this"
    assert caplog.messages.count(said) == 1


@pytest.mark.parametrize("schedule", [Every(steps=5), ~Every(steps=5), Every(steps=4) | Every(steps=6)])
def test_scheduled_handlers_run_at_the_same_steps(fit, schedule):
    def train(**options):
        steps = []

        @on("on_step_begin", when=schedule)
        def look(run):
            steps.append(run.step)

        return fit(look, **options), steps

    (plain, expected), (graph, steps) = train(cuda_graph=False), train(cuda_graph=True)
    assert_same(graph, plain)
    assert steps == expected


def test_losses_kept_by_a_callback_keep_their_values(fit):
    class Keeps(Callback):
        def on_train_iter_end(self, run):
            losses.append(run.loss)
            values.append(run.loss.item())

    losses, values = [], []
    fit(Keeps(), cuda_graph=True)
    assert [loss.item() for loss in losses] == values


class Drops(Callback):
    """Add a layer that draws from the CPU generator."""

    def on_setup(self, run):
        run.model.append(nn.Dropout(0.5))


def test_random_numbers_drawn_on_the_cpu_raise(fit, monkeypatch):
    monkeypatch.setattr(Recomputed, "runs_at_capture", True)
    with pytest.raises(BadLoop) as error:
        fit(Drops(), cuda_graph=True)
    expected = (
        "the forward pass draws random numbers on the CPU: a CUDA graph would repeat the numbers from its capture.\n"
        "  draw      them on the GPU: torch.rand(..., device=x.device)"
    )
    assert str(error.value) == expected


def test_auto_trains_without_a_graph_if_the_capture_fails(fit, monkeypatch, caplog):
    def fail(*args):
        raise BadLoop("the step cannot be captured.", avoid="it")

    monkeypatch.setattr(_graph_stepper, "StepGraph", fail)
    plain = fit(Drops(), cuda_graph=False, seed=5)
    assert_same(fit(Drops(), cuda_graph="auto", seed=5), plain)
    assert caplog.messages == ["training without CUDA graphs: the step cannot be captured."]


def test_a_skip_in_the_forward_raises(fit, monkeypatch):
    class Skipping(MainCallback):
        def on_iter_forward(self, run):
            run.forward()
            if run.iteration >= 3:
                run.skip_step()

    monkeypatch.setattr(Recomputed, "runs_at_capture", True)
    with pytest.raises(BadLoop, match="a request to skip or retry in the forward pass cannot be captured"):
        fit(Skipping(), cuda_graph=True)
