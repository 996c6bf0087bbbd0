"""Runs with averaged weights, killed while the averages are in the model; each function is a task."""

from __future__ import annotations

import os
import signal
from typing import Any

import subject

from hookpoint import Callback
from hookpoint import callbacks as cb

KINDS = ("ema", "swa")
SITES = ("on_step_end", "on_val_epoch_begin", "on_val_iter_end", "on_val_epoch_end", "on_epoch_end", "on_save")


class Dies(Callback):
    """Send the process a signal, once, at a point of an epoch. Validation runs at the end of an epoch or within it."""

    def __init__(self, site: str, epoch: int, sends: int) -> None:
        super().__init__()
        self._site, self._epoch, self._sends = site, epoch, sends

    def _reached(self, site: str, run: Any) -> None:
        if site == self._site and run.epoch >= self._epoch and not run.resuming:
            self._site = ""
            os.kill(os.getpid(), self._sends)

    def on_step_end(self, run: Any) -> None:
        self._reached("on_step_end", run)

    def on_val_epoch_begin(self, run: Any) -> None:
        self._reached("on_val_epoch_begin", run)

    def on_val_iter_end(self, run: Any) -> None:
        self._reached("on_val_iter_end", run)

    def on_val_epoch_end(self, run: Any) -> None:
        self._reached("on_val_epoch_end", run)

    def on_epoch_end(self, run: Any) -> None:
        self._reached("on_epoch_end", run)

    def on_save(self, run: Any) -> None:
        self._reached("on_save", run)


def train(
    workdir: str, trace: str, variant: dict[str, Any], kind: str, site: str = "", epoch: int = 0, sends: int = signal.SIGKILL
) -> dict[str, str]:
    """Train to the end, or until killed; return the results, including the averages."""
    average: Any = cb.SwapEMAWeights(0.9, swap_on_epoch=True, keep_at_end=False)
    if kind == "swa":
        average = cb.StochasticWeightAveraging(2, 0.02, anneal_epochs=2)
    result = subject.train(workdir, trace, subject.Variant(**variant), more=[average, Dies(site, epoch, sends)])
    kept = average.state_dict()
    return {**result, "averages": subject.digest(kept), "averaged weights": subject.digest(average.weights())}
