"""A run under another trainer that is killed after a checkpoint: python -m tests.adapters.killed keras batch FOLDER."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

from tests.adapters.scripts import Fit

from hookpoint import Callback
from hookpoint import callbacks as cb

AFTER = {"epoch": 4, "batch": 5}  # iterations: one step after the save, so that nothing is saved here


class Seen(Callback):
    """Record the clocks and metrics at each on_epoch_end, and the clocks at the end of the run."""

    def on_setup(self):
        self.epochs, self.end = [], None

    def on_epoch_end(self, run):
        self.epochs.append((run.epoch, run.iteration, run.step, run.samples, run.metrics["loss"], run.metrics["val_loss"]))

    def on_run_end(self, run):
        self.end = (run.epoch, run.iteration, run.step, run.samples, run.stop_reason)


class Kill(Callback):
    """Kill the process at a place, as the kernel does when it runs out of memory."""

    def __init__(self, place):
        super().__init__()
        self._place = place

    def on_train_iter_begin(self, run):
        if run.iteration == AFTER.get(self._place):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, run):
        if self._place == "validation" and run.epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def trained(host, fit, *more):
    """Train under a host, with a callback that stops the run; return the Seen callback and the weights."""
    seen = Seen()
    model = host.fit([cb.EarlyStopping("val_loss", min_delta=10.0, patience=3), seen, *more], fit)
    return seen, [tensor.detach().tolist() for tensor in model.parameters()]


def main(name, place, folder):
    host, folder = importlib.import_module(f"tests.adapters.hosts.{name}"), Path(folder)
    fit = Fit(epochs=9, save_at=place, is_killed=True, folder=folder, workdir=folder / "run")
    trained(host, fit, Kill(place))


if __name__ == "__main__":
    main(*sys.argv[1:])
