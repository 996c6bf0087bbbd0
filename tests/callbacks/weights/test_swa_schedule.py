from __future__ import annotations

import pytest
import torch
from torch.optim.swa_utils import SWALR

from hookpoint.callbacks.weights._swa_schedule import SWASchedule
from hookpoint.core.errors import BadLoop


@pytest.mark.parametrize(("start", "epochs", "first"), [(1, 9, 1), (7, None, 7), (0.75, 8, 7), (0.75, 10, 8), (0.99, 3, 3)])
def test_the_first_epoch_that_counts(start, epochs, first):
    assert SWASchedule(start, 10, "cos").first_epoch(epochs) == first


def test_a_part_of_nobody_knows_how_many_is_refused():
    with pytest.raises(BadLoop, match="needs a run with a known number of epochs"):
        SWASchedule(0.75, 10, "cos").first_epoch(None)


@pytest.mark.parametrize("anneal", ["cos", "linear"])
@pytest.mark.parametrize("anneal_epochs", [0, 1, 2, 5])
def test_the_rate_is_that_of_torchs_scheduler(anneal, anneal_epochs):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    theirs = SWALR(optimizer, swa_lr=0.05, anneal_epochs=anneal_epochs, anneal_strategy=anneal)
    schedule = SWASchedule(3, anneal_epochs, anneal)
    for epoch in range(3, 12):
        optimizer.step()
        theirs.step()
        assert schedule.rate(0.4, 0.05, epoch=epoch, first=3) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
    assert schedule.rate(0.4, 0.05, epoch=11, first=3) == 0.05


@pytest.mark.parametrize(
    "given",
    [{"start": 0}, {"start": 1.0}, {"start": 0.0}, {"start": True}, {"start": "2"}, {"anneal": "log"}, {"anneal_epochs": -1}],
    ids=str,
)
def test_what_means_nothing_is_refused(given):
    with pytest.raises(ValueError, match="must be"):
        SWASchedule(**{"start": 2, "anneal_epochs": 10, "anneal": "cos", **given})
