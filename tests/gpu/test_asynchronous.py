"""Asynchronous callbacks on a GPU get copies of the current values, without a sync and on any stream."""

from __future__ import annotations

import torch

from hookpoint import Callback, Runner


class Reads(Callback):
    """Sum the values of the step. With `waits`, wait for the device on the callback's thread."""

    asynchronous = True

    def __init__(self, waits):
        self.waits, self.seen = waits, []

    def on_train_iter_end(self, run, batch, outputs, loss):
        assert outputs.is_cuda
        assert not outputs.requires_grad
        values = batch[0].double().sum(), outputs.double().sum(), loss
        self.seen.append((run.step, *(value.item() if self.waits else value for value in values)))


class Keeps(Callback):
    """Copy the same values on the training thread, then overwrite the originals."""

    def __init__(self):
        self.kept = []

    def on_train_iter_end(self, run, batch, outputs, loss):
        values = [value.detach().clone() for value in (batch[0], outputs, loss)]
        self.kept.append((run.step, *values))
        for value in (batch[0], outputs, loss):
            value.detach().fill_(float("nan"))

    def sums(self):
        return [
            (step, batch.double().sum().item(), outputs.double().sum().item(), loss.item())
            for step, batch, outputs, loss in self.kept
        ]


def fit(waits=True, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    reads, keeps = Reads(waits), Keeps()
    runner = Runner(
        *(model, optimizer, torch.nn.MSELoss()),
        callbacks=[reads, keeps],
        extra_callbacks=[],
        monitors=[],
        device="cuda",
        on_nonfinite="warn",
        **options,
    )
    runner.fit((torch.randn(2048, 256), torch.randn(2048, 8)), epochs=2, batch_size=16)
    assert len(reads.seen) == 256
    assert [(step, *map(float, values)) for step, *values in reads.seen] == keeps.sums()


def test_callbacks_get_copies_of_the_current_values():
    fit()


def test_the_training_thread_does_not_sync():
    fit(waits=False, strict_sync=True)  # the mode applies to all threads


def test_copies_on_another_stream_have_the_current_values():
    with torch.cuda.stream(torch.cuda.Stream()):
        fit()


def test_copies_in_a_captured_step_have_the_current_values():
    fit(cuda_graph=True)
