"""Soak: a long run that records its own resources at intervals; a task of `children`."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import torch

from hookpoint import Callback, Loop
from hookpoint import callbacks as cb


class Looks(Callback):
    """Record the resident bytes, the open files and the threads of this process."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.seen: list[tuple[int, int, int]] = []
        self._every = every

    def on_iter_end(self, run: Any) -> None:
        if run.iteration % self._every == 0:
            run.monitors.drain()
            for thread in threading.enumerate():
                if thread.name == "hookpoint-save":
                    thread.join()
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            files = min(len(os.listdir("/proc/self/fd")) for _ in range(20))  # other threads open files briefly
            self.seen.append((pages * os.sysconf("SC_PAGESIZE"), files, threading.active_count()))


def train(workdir: str, steps: int, looks: int) -> list[tuple[int, int, int]]:
    """Train `steps` steps with monitors and checkpoints; return the recorded values."""
    watch = Looks(steps // looks)
    monitors: list[Any] = [cb.JSONWriter(), cb.TFEventWriter(), cb.CSVLogger(rows="step")]
    loop = Loop([watch, cb.ModelSaver()], monitors=monitors, model=torch.nn.Linear(2, 1), workdir=workdir, log_every=50)
    with loop as run:
        for _ in run.epochs(10):
            for batch in run.batches(range(steps // 10)):
                run.log(loss=float(batch))
    return watch.seen
