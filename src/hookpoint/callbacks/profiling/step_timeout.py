"""StepTimeout: notice a step that hangs."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from hookpoint.callbacks._shared.arguments import number
from hookpoint.callbacks.profiling._step_watch import StepWatch
from hookpoint.callbacks.profiling._thread_dump import thread_dump
from hookpoint.callbacks.profiling.step_too_slow import StepTooSlow
from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

THEN = ("log", "stop", "raise", "exit")
MODES = ("train", "val", "pred")
DRAIN_SECONDS = 2.0


class StepTimeout(Callback):
    """Say what every thread is doing when a step takes longer than `seconds`, and go on, stop, raise or leave.

    The stacks go to the log, and with a workdir to `stacks-<step>.txt` in it, once for a step. `then="log"` leaves it at that.
    "stop" stops the run when the step has ended after all, with a checkpoint where there is a saver. "raise" raises
    `StepTooSlow` in the training thread as soon as that runs Python code: not while it hangs in a driver or a lock. "exit"
    leaves the process at once with exit code 75, without end points: whoever supervises it starts it again, and the run goes
    on from its newest checkpoint.

    A step is an iteration of training, with the wait for its batch; validation passes, checkpoints and what happens between
    epochs are none. `covers=["train", "val"]` has the iterations of validation watched as well. The first iteration of each
    pass, where workers start and kernels are compiled, may take `first_seconds`. A step that someone looks at in a debugger or
    a shell is not late; one that was halted with Ctrl-Z is. When the interpreter itself hangs, in code that never lets go of
    it, a timer of faulthandler, of which a process has one, writes `stacks-interpreter.txt`, and "exit" has exit code 1.

    Listens to the begin and end of passes, on_batch_fetch_begin, the end of iterations, on_iter_skip, on_run_begin,
    on_exception and on_run_end. Sends the event "step timeout". Keeps nothing in the checkpoint. Runs on all ranks. A step
    pays for storing the time, less than a microsecond; a thread looks at it now and then.

    >>> StepTimeout(600, first_seconds=1800, then="exit").seconds
    600.0
    """

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
        self.seconds = _above_zero("seconds", seconds)
        self.first_seconds = self.seconds if first_seconds is None else _above_zero("first_seconds", first_seconds)
        if then not in THEN:
            raise BadArgument(f"StepTimeout(then={then!r}) is no policy.", choose=", ".join(map(repr, THEN)))
        self.then = then
        self.covers = tuple([covers] if isinstance(covers, str) else covers)
        if not self.covers or any(mode not in MODES for mode in self.covers):
            raise BadArgument(f"StepTimeout(covers={covers!r}) names no modes.", choose=", ".join(map(repr, MODES)))
        self._watch: StepWatch | None = None
        self._late = ""

    def on_run_begin(self, run: Run) -> None:
        self._close()
        self._run = run
        self._late = ""
        rank = "" if run.rank == 0 else f"-rank{run.rank}"
        self._watch = StepWatch(
            self.name or "StepTimeout",
            self.seconds,
            max(self.seconds, self.first_seconds),
            self._tell,
            stuck=None if run.workdir is None else Path(run.workdir) / f"stacks-interpreter{rank}.txt",
            exits=self.then == "exit",
        )

    def on_batch_fetch_begin(self, run: Run) -> None:
        watch = self._watch
        if watch is not None and run.mode in self.covers:
            watch.began = monotonic()

    def on_train_iter_end(self, run: Run) -> None:
        self._end_step()
        if self._late and self.then == "stop":
            run.stop(self._late)

    def on_val_iter_end(self) -> None:
        self._end_step()

    def on_pred_iter_end(self) -> None:
        self._end_step()

    def on_iter_skip(self, run: Run) -> None:
        self.on_batch_fetch_begin(run)  # where it is tried again, nothing is fetched

    def on_train_epoch_begin(self) -> None:
        self._pass_over()

    def on_train_epoch_end(self) -> None:
        self._pass_over()

    def on_val_epoch_begin(self) -> None:
        self._pass_over()

    def on_val_epoch_end(self) -> None:
        self._pass_over()

    def on_pred_epoch_begin(self) -> None:
        self._pass_over()

    def on_pred_epoch_end(self) -> None:
        self._pass_over()

    def on_exception(self, error: BaseException) -> None:
        self._end_step()
        if isinstance(error, StepTooSlow) and self._late:
            error.add_note(self._late)

    def on_run_end(self) -> None:
        self._close()

    def _end_step(self) -> None:
        watch = self._watch
        if watch is not None:
            watch.began = None
            watch.limit = self.seconds

    def _pass_over(self) -> None:
        """Watch nothing until a batch is asked for; the first of a pass has more time."""
        if self._watch is not None:
            self._watch.began = None
            self._watch.limit = self.first_seconds

    def _tell(self, seconds: float) -> None:
        """Say it, and do what was asked for; the thread that watches calls this."""
        run, watch = self._run, self._watch
        if run is None or watch is None:
            return
        step = run.step + 1
        self._late = f"{self.name or 'StepTimeout'}: step {step} takes longer than {watch.limit:g} s"
        words = thread_dump(watch.thread)
        logger.error("%s; this is what the threads are doing\n%s", self._late, words)
        file = _write(run, step, f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z} {self._late}\n\n{words}\n")
        # Not run.put_event: that closes what a `break` left behind, which is for the training thread to do.
        run.monitors.put("event", {"step timeout": {"seconds": round(seconds, 3), "then": self.then, "stacks": file}})
        if self.then == "raise" and self._watch is watch:  # else the step has ended meanwhile, and the run with it
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watch.thread), ctypes.py_object(StepTooSlow))
        elif self.then == "exit":
            watch.end_timer()
            run.monitors.drain(DRAIN_SECONDS)
            logger.error("%s; the process ends with exit code %d", self._late, self.EXIT_CODE)
            logging.shutdown()
            os._exit(self.EXIT_CODE)

    def _close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_watch": None}


def _write(run: Run, step: int, words: str) -> str | None:
    if run.workdir is None:
        return None
    rank = "" if run.rank == 0 else f"-rank{run.rank}"
    file = Path(run.workdir) / f"stacks-{step}{rank}.txt"
    try:
        with open(file, "a", encoding="utf-8") as out:  # the same step may have hung before a resume
            out.write(words)
    except OSError as error:
        logger.warning("%s could not be written: %s", file, error.strerror)
    return file.name


def _above_zero(argument: str, seconds: Any) -> float:
    if number("StepTimeout", argument, seconds, least=0.0) == 0:
        raise BadArgument(f"StepTimeout({argument}={seconds!r}) allows no step.", give="a number of seconds above 0")
    return float(seconds)
