"""A callback that records what it sees at each point, and the small training run that every host executes."""

from __future__ import annotations

import torch

from hookpoint import Callback
from hookpoint.core.points import POINTS

LEFT_OUT = ("on_setup", "on_trigger", "on_records")
LEARNING_RATE = 0.05
X = torch.rand(10, 2, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
TRAIN = [(X[:4], Y[:4]), (X[4:8], Y[4:8]), (X[8:], Y[8:])]  # batches of 4, 4 and 2 samples
VAL = [(X[:8], Y[:8])]


class Net(torch.nn.Linear):
    """A network with zero weights. Its forward raises ValueError in the training batch `fail_at`, counted from 0."""

    def __init__(self, fail_at=None):
        super().__init__(2, 1)
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)
        self.fail_at, self.batches = fail_at, 0

    def forward(self, x):
        if self.training:
            if self.batches == self.fail_at:
                raise ValueError("the host fails")
            self.batches += 1
        return super().forward(x)


class Record(Callback):
    """Rows of point, epoch, iteration, step, mode, batch_idx, samples, and val_loss at on_epoch_end."""

    def __init__(self, without=(), act=None):
        super().__init__(name="Record")
        self.rows, self._act = [], act
        for point in POINTS:
            if not (point.main_only or point.in_data or point.name in LEFT_OUT or point.name in without):
                setattr(self, point.name, self._noting(point.name))

    def _noting(self, point):
        def note(run):
            idx = run.batch_idx if hasattr(run, "batch_idx") else None
            row = (point, run.epoch, run.iteration, run.step, run.mode, idx, run.samples)
            if point == "on_epoch_end" and "val_loss" in run.logs:
                row += (round(run.logs["val_loss"], 5),)
            self.rows.append(row)
            if self._act is not None:
                self._act(point, run)

        return note
