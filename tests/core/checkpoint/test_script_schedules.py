"""Schedulers whose settings have changed since the checkpoint."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler as torch_schedulers

from hookpoint import LambdaCallback, Runner
from hookpoint import callbacks as cb

LONGER = ("CosineAnnealingLR has T_max=4", "2", "T_max")


def cosine(optimizer, epochs):
    return torch_schedulers.CosineAnnealingLR(optimizer, T_max=epochs)


def warmed_up(optimizer, epochs):
    warmup = torch_schedulers.LinearLR(optimizer, total_iters=1)
    return torch_schedulers.SequentialLR(optimizer, [warmup, cosine(optimizer, epochs)], milestones=[epochs // 2])


def chained(optimizer, epochs):
    steps = torch_schedulers.MultiStepLR(optimizer, [1, epochs]), torch_schedulers.StepLR(optimizer, 9)
    return torch_schedulers.ChainedScheduler(steps)


def plateau(optimizer, epochs):
    return torch_schedulers.ReduceLROnPlateau(optimizer, patience=epochs)


def train(workdir, make, epochs, *callbacks, horizon=None):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = make(optimizer, horizon or epochs)
    options = {"callbacks": [cb.ModelSaver(), *callbacks], "extra_callbacks": [], "monitors": [], "workdir": workdir}
    runner = Runner(model, optimizer, torch.nn.functional.mse_loss, lr_scheduler=scheduler, **options)
    data = torch.ones(2, 1)
    runner.fit((data, data), epochs=epochs, batch_size=1)
    return scheduler


@pytest.mark.parametrize(
    ("make", "lines"),
    [
        (cosine, [("CosineAnnealingLR has T_max=4", "2", "T_max")]),
        (
            warmed_up,
            [("SequentialLR has milestones=[2]", "[1]", "_milestones"), ("CosineAnnealingLR has T_max=4", "2", "T_max")],
        ),
        (chained, [("MultiStepLR has milestones={1: 1, 4: 1}", "{1: 1, 2: 1}", "milestones")]),
        (plateau, [("ReduceLROnPlateau has patience=4", "2", "patience")]),
    ],
)
def test_settings_of_schedulers_that_differ_from_the_checkpoint_are_reported(make, lines, tmp_path, caplog):
    train(tmp_path, make, 2)
    train(tmp_path, make, 3, horizon=2)
    assert not caplog.records
    train(tmp_path, make, 4)
    assert [record.getMessage() for record in caplog.records] == [
        f"the script's {script}, but the run uses {used}, the value in the checkpoint. To use another value, set the"
        f" scheduler's attribute {attribute} in on_epoch_begin"
        for script, used, attribute in lines
    ]


def test_a_value_set_at_on_epoch_begin_replaces_the_checkpoints_value(tmp_path, caplog):
    train(tmp_path, cosine, 2)
    longer = LambdaCallback(on_epoch_begin=lambda run: setattr(run.lr_scheduler, "T_max", 4))
    assert train(tmp_path, cosine, 3, longer, horizon=4).T_max == 4
    caplog.clear()
    assert train(tmp_path, cosine, 4).T_max == 4
    assert not caplog.records
