from __future__ import annotations

import torch

from hookpoint import Record
from hookpoint.monitors._row_values import EpochValues


def scalars(epoch, /, at="epoch", **values):
    return Record("scalars", values, step=9, epoch=epoch, at=at)


def end(epoch):
    return Record("event", {"epoch_end": {"complete": True}}, step=9, epoch=epoch)


def test_the_values_of_an_epoch_form_one_row():
    values = EpochValues()
    taken = [
        values.take(one)
        for one in [
            scalars(1, at="value", rate=0.5),
            scalars(1, at="step", loss=3.0, grad=9.0),
            scalars(1, loss=torch.tensor(1.0)),
            scalars(1, val_loss=2.0),
            scalars(1, val_loss=4.0),
            Record("text", {"note": "hello"}, step=9, epoch=1),
            Record("event", {"save": {}}, step=9, epoch=1),
            end(1),
            end(2),
        ]
    ]
    assert taken[:-2] == [None] * 7
    assert taken[-2:] == [{"epoch": 1, "rate": 0.5, "loss": 1.0, "val_loss": 4.0}, {"epoch": 2}]


def test_a_metric_called_epoch_gets_a_prefix():
    values = EpochValues()
    values.take(scalars(1, epoch=7.0))
    assert values.take(end(1)) == {"epoch": 1, "values/epoch": 7.0}
