"""Train a small model with a mirror, configured by TRAIN_* in the environment, and save its weights at the end."""

from __future__ import annotations

import os
import sys

import torch
from torch import nn

from hookpoint import Callback, Every, Runner
from hookpoint import callbacks as cb


class Follow(Callback):
    """Wait after each save until the test has seen it in the mirror, because training is much faster than uploads."""

    def on_save(self):
        print("saved", flush=True)
        sys.stdin.readline()


def main() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.1), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(4)
    inputs, targets = torch.randn(64, 4, generator=generator), torch.randn(64, 2, generator=generator)
    callbacks = [cb.ModelSaver(max_to_keep=3, keep_checkpoint_every_n_hours=None).when(Every(steps=2)), cb.MinSaver("loss")]
    if "TRAIN_URL" in os.environ:
        callbacks.append(cb.Mirror(os.environ["TRAIN_URL"], every_seconds=0.05))
        callbacks.append(Follow())
    options = {"workdir": os.environ["TRAIN_WORKDIR"], "log_every": 1, "extra_callbacks": []}
    monitors = [cb.JSONWriter()]
    runner = Runner(model, optimizer, nn.MSELoss(), callbacks=callbacks, monitors=monitors, **options)
    runner.fit((inputs, targets), epochs=int(os.environ["TRAIN_EPOCHS"]), batch_size=8)
    torch.save(model.state_dict(), os.path.join(os.environ["TRAIN_WORKDIR"], "final.pt"))


print("pid", os.getpid(), flush=True)
if sys.stdin.readline():  # the test knows the pid
    main()
    print("done", flush=True)
