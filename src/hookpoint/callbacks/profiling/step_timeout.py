"""StepTimeout: detect a step that hangs."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Unpack

from hookpoint.callbacks._shared.arguments import choice, choices, positive
from hookpoint.callbacks._shared.workdir import rank_suffix
from hookpoint.callbacks.profiling._step_watch import StepWatch, thread_dump
from hookpoint.callbacks.profiling.step_too_slow import StepTooSlow
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run

DRAIN_SECONDS = 2.0


class StepTimeout(Callback):
    """Log the stacks of all threads when a step takes longer than `seconds`, then continue, stop, raise or exit.

    The stacks are logged once per step and, with a workdir, written to `stacks-<step>.txt`. `then` selects what happens next:

    - "log": the run continues.
    - "stop": the run stops at the end of the step. A checkpoint is saved if there is a saver.
    - "raise": `StepTooSlow` is raised in the training thread as soon as that thread runs Python code. The error cannot be
      raised while the thread hangs in a driver or waits for a lock.
    - "exit": the process exits immediately with exit code 75. No further handlers are called, not even on_run_end. If
      a supervisor restarts the process, the run resumes from its newest checkpoint.

    A step is a training iteration, including the wait for its batch. In other libraries' trainers, which fetch batches
    themselves, the wait does not count. Validation passes, checkpoints and the time between epochs do not count.
    `covers=["train", "val"]` also watches validation iterations. In the first iteration of each pass, workers start and
    kernels are compiled, so this iteration may take up to `first_seconds` seconds. A step that is paused in a debugger or a
    shell does not count as late. A step that is suspended with Ctrl-Z counts as late. If the interpreter itself hangs, in code
    that never releases the GIL, faulthandler's timer writes `stacks-interpreter.txt`, and "exit" exits with code 1. This timer
    requires a workdir. A process has only one such timer, so only one StepTimeout at a time can use it.

    Listens to the beginning and end of passes and iterations, on_batch_fetch_begin, on_iter_skip, on_run_begin, on_exception
    and on_run_end. Sends the event "step timeout".

    >>> StepTimeout(600, first_seconds=1800, then="exit").seconds
    600.0
    """

    optional_points = ("on_batch_fetch_begin", "on_iter_skip")
    step_cost = "less than a microsecond to store the time at which the step began; a background thread checks this time"

    EXIT_CODE = 75  # EX_TEMPFAIL: try again

    def __init__(
        self,
        seconds: float,
        then: Literal["log", "stop", "raise", "exit"] = "log",
        *,
        first_seconds: float | None = None,
        covers: Iterable[Literal["train", "val", "pred"]] = ("train",),
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        limits = {"seconds": seconds, "first_seconds": seconds if first_seconds is None else first_seconds}
        self.seconds, self.first_seconds = (float(positive("StepTimeout", *limit)) for limit in limits.items())
        self.then = choice("StepTimeout", "then", then, ("log", "stop", "raise", "exit"))
        self.covers = choices("StepTimeout", "covers", covers, ("train", "val", "pred"))
        self._watch: StepWatch | None = None
        self._late = ""

    def on_run_begin(self, run: Run) -> None:
        self.on_run_end()
        self._run = run
        self._late = ""
        stuck = None if run.workdir is None else Path(run.workdir) / f"stacks-interpreter{rank_suffix(run)}.txt"
        longest = max(self.seconds, self.first_seconds)
        owner = self.name or "StepTimeout"
        self._watch = StepWatch(owner, self.seconds, longest, self._report, stuck=stuck, exits=self.then == "exit")

    def on_batch_fetch_begin(self, run: Run) -> None:
        watch = self._watch
        if watch is not None and run.mode in self.covers:
            watch.began = monotonic()

    def on_iter_begin(self, run: Run) -> None:
        """Start timing here if another library's trainer fetches the batches. Otherwise, timing started with the fetch."""
        watch = self._watch
        if watch is not None and watch.began is None and run.mode in self.covers:
            watch.began = monotonic()

    def on_train_iter_end(self, run: Run) -> None:
        self._end_step()
        if self._late and self.then == "stop":
            run.stop(self._late)

    def on_val_iter_end(self) -> None:
        self._end_step()

    on_pred_iter_end = on_val_iter_end

    def on_iter_skip(self, run: Run) -> None:
        self.on_batch_fetch_begin(run)  # a retry does not fetch a batch

    def on_train_epoch_begin(self) -> None:
        """Stop watching until the next batch is fetched. The first batch of a pass has a longer limit."""
        if self._watch is not None:
            self._watch.began = None
            self._watch.limit = self.first_seconds

    on_train_epoch_end = on_val_epoch_begin = on_val_epoch_end = on_train_epoch_begin
    on_pred_epoch_begin = on_pred_epoch_end = on_train_epoch_begin

    def on_exception(self, error: BaseException) -> None:
        self._end_step()
        if isinstance(error, StepTooSlow) and self._late:
            error.add_note(self._late)

    def on_run_end(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _end_step(self) -> None:
        watch = self._watch
        if watch is not None:
            watch.began = None
            watch.limit = self.seconds

    def _report(self, seconds: float) -> None:
        """Log the stacks, then do what `then` selects. The watching thread calls this method."""
        run, watch = self._run, self._watch
        if run is None or watch is None:
            return
        step = run.step + 1
        self._late = f"{self.name or 'StepTimeout'}: step {step} takes longer than {watch.limit:g} s"
        stacks = thread_dump(watch.thread)
        logger.error("%s; stacks of all threads:\n%s", self._late, stacks)
        file = _write(run, step, f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z} {self._late}\n\n{stacks}\n")
        # run.put_event also closes iterators that a `break` left open, which only the training thread may do.
        run.monitors.put("event", {"step timeout": {"seconds": round(seconds, 3), "then": self.then, "stacks": file}})
        if self.then == "raise" and self._watch is watch:  # the run has not ended in the meantime
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watch.thread), ctypes.py_object(StepTooSlow))
        elif self.then == "exit":
            watch.end_timer()
            run.monitors.drain(DRAIN_SECONDS)
            logger.error("%s; exiting with code %d", self._late, self.EXIT_CODE)
            logging.shutdown()
            os._exit(self.EXIT_CODE)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_watch": None}


def _write(run: Run, step: int, text: str) -> str | None:
    if run.workdir is None:
        return None
    file = Path(run.workdir) / f"stacks-{step}{rank_suffix(run)}.txt"
    try:
        with open(file, "a", encoding="utf-8") as out:  # append: the run may have hung at this step before
            out.write(text)
    except OSError as error:
        logger.warning("%s could not be written: %s", file, error.strerror)
    return file.name
