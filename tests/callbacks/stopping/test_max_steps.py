from __future__ import annotations

import pytest
import torch

from hookpoint import Callback, Runner
from hookpoint.callbacks import MaxSteps, ModelSaver
from hookpoint.core.loop.loop import Loop
from hookpoint.run_folder.run_folder import RunFolder


@pytest.mark.parametrize(("n", "steps", "epoch"), [(0, 0, 0), (1, 1, 1), (3, 3, 1), (4, 4, 2), (15, 15, 5), (99, 15, 5)])
def test_the_run_stops_after_n_steps(train, n, steps, epoch):
    run = train([MaxSteps(n)], epochs=5)
    assert (run.step, run.epoch) == (steps, epoch)


@pytest.mark.parametrize(("n", "complete"), [(3, True), (4, False), (6, True)])
def test_a_stop_at_the_last_step_of_an_epoch_completes_the_epoch(train, n, complete):
    assert train([MaxSteps(n)], epochs=5).epoch_complete is complete


def test_the_run_stops_when_the_number_of_batches_is_unknown():
    with Loop([MaxSteps(4)]) as run:
        for _ in run.epochs(3):
            for _ in run.batches(iter(range(3))):
                pass
    assert run.step == 4


def test_a_stopped_run_continues_with_a_larger_n(train, disk):
    assert train([MaxSteps(4), ModelSaver()], epochs=5, store=disk).step == 4
    assert train([MaxSteps(4), ModelSaver()], epochs=5, store=disk).step == 4
    assert train([MaxSteps(7), ModelSaver()], epochs=5, store=disk).step == 7


def test_a_resumed_run_with_no_steps_left_warns(train, disk, caplog):
    frozen = torch.nn.Linear(1, 1).requires_grad_(False)
    train([MaxSteps(4), ModelSaver()], epochs=5, store=disk, model=frozen)
    assert not caplog.records
    train([MaxSteps(4), ModelSaver()], epochs=5, store=disk, model=frozen)
    assert caplog.messages == ["MaxSteps: already at step 4, nothing to train; raise n to resume"]


def test_a_second_run_counts_from_scratch():
    loop = Loop([MaxSteps(2)])
    for _ in range(2):
        with loop as run:
            for _ in run.batches(range(5)):
                pass
        assert run.step == 2


def test_a_runner_counts_optimizer_steps_and_validates_a_complete_epoch():
    class Seen(Callback):
        reads = ("val_loss",)

        def on_trigger(self, run):
            self.values = run.metrics.observations("val_loss")

    seen, model = Seen(), torch.nn.Linear(2, 1)
    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.nn.MSELoss(),
        callbacks=[MaxSteps(4), seen],
        monitors=[],
        extra_callbacks=[],
        accumulate=2,
    )
    data = (torch.randn(8, 2), torch.randn(8, 1))
    run = runner.fit(data, data, epochs=9, batch_size=2)
    assert (run.step, run.iteration, run.epoch) == (4, 8, 2)
    assert seen.values == 2


@pytest.mark.parametrize("n", [-1, 1.5, True, None, "3"])
def test_an_invalid_n_raises(n):
    with pytest.raises(ValueError, match="n must be an integer >= 0"):
        MaxSteps(n)


def test_the_status_of_the_run_is_finished(train_public, tmp_path):
    train_public([MaxSteps(4)], epochs=5, workdir=tmp_path)
    assert (RunFolder(tmp_path).status, RunFolder(tmp_path).reason) == ("finished", "MaxSteps: 4 steps are done")
