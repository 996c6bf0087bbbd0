"""TimeMonitor: how long epochs and steps take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks.progress._lap_timer import LapTimer
from hookpoint.core.callback.callback import Options
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say


class TimeMonitor(LapTimer):
    """Print the duration of each epoch and its mean step time in milliseconds, as in MindSpore, and log both in seconds.

        data_size: Also print a line every `data_size` steps.
        data_time: Also measure the time that each step spends waiting for data.

    A line reads `Train epoch time: 5120.125 ms, per step time: 20.001 ms`. A validation pass prints a line that begins with
    `Eval`. Validation times are not logged. The step time is the mean over optimizer steps, while MindSpore divides by the size
    of the dataset. Only training time counts: validation, checkpoints and callbacks between epochs are left out. If a
    validation pass fails and the run continues, no time is reported for that epoch. For an epoch that was interrupted
    and resumed, the time covers the parts before and after the interruption, including the time spent reading data again.

    Logs `epoch_seconds`, `step_seconds` and `data_seconds` for each epoch. At each log step, also logs the mean `step_seconds`
    since the last log step.

    >>> monitor = TimeMonitor(data_size=100, data_time=True)
    """

    step_cost: ClassVar[str] = f"{LapTimer.step_cost}; half a microsecond with `data_size`, one with `data_time`"

    def __init__(self, data_size: int | None = None, data_time: bool = False, **options: Unpack[Options]) -> None:
        super().__init__("epoch", "log step", "line", **options)
        self.data_size = None if data_size is None else integer("TimeMonitor", "data_size", data_size, least=1)
        self.data_time = data_time
        self.may_write = ("epoch_seconds", "step_seconds", *(["data_seconds"] if data_time else []))
        self._waited = 0.0
        self._validation_began: float | None = None
        handlers: dict[str, Any] = {"on_train_iter_end": self._end_step} if data_size is not None else {}
        if data_time:
            handlers |= {"on_batch_fetch_begin": self._begin_fetch, "on_batch_fetch_end": self._end_fetch}
        for point, handler in handlers.items():  # define handlers only if needed, because each costs time
            setattr(self, point, handler)

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._waited = 0.0
        run.at_log_step(self._at_log_step)

    def on_train_epoch_begin(self, run: Run) -> None:
        super().on_train_epoch_begin(run)
        self._waited = 0.0
        self.start("epoch")

    def on_train_epoch_end(self, run: Run) -> None:
        super().on_train_epoch_end(run)
        epoch, waited = self.elapsed("epoch"), self._waited
        self._waited = 0.0
        self.start("epoch")
        per_step = epoch.seconds_per_step
        if self.time.is_unknown or per_step is None:
            return
        run.log(epoch_seconds=epoch.seconds, step_seconds=per_step)
        data = ""
        if self.data_time:
            run.log(data_seconds=waited / epoch.steps)
            data = f" (data time: {_ms(waited / epoch.steps)})"
        say(f"Train epoch time: {_ms(epoch.seconds)}, per step time: {_ms(per_step)}{data}")

    def on_val_epoch_begin(self, run: Run) -> None:
        super().on_val_epoch_begin(run)
        self._validation_began = self.time.clock()

    def on_val_epoch_end(self, run: Run) -> None:
        super().on_val_epoch_end(run)
        began, self._validation_began = self._validation_began, None
        batches = run.progress.done if run.progress is not None else 0
        if began is not None and batches:
            seconds = self.time.clock() - began
            say(f"Eval epoch time: {_ms(seconds)}, per step time: {_ms(seconds / batches)}")

    def _end_step(self, run: Run) -> None:
        if run.step % (self.data_size or 1) == 0:
            line = self.elapsed("line")
            if line.seconds_per_step is not None:  # None if there was no optimizer step since the last line
                self.start("line")
                say(f"epoch: {run.epoch} step: {run.batch_idx + 1}, per step time: {_ms(line.seconds_per_step)}")

    def _begin_fetch(self, run: Run) -> None:
        if run.mode == "train":
            self._waited -= self.time.clock()

    def _end_fetch(self, run: Run) -> None:
        if run.mode == "train":
            self._waited += self.time.clock()

    def _at_log_step(self, means: Mapping[str, Any]) -> dict[str, float]:
        per_step = self.elapsed("log step").seconds_per_step
        if per_step is None:
            return {}
        self.start("log step")
        return {"step_seconds": per_step}

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "seconds": {**state["seconds"], "waited": self._waited}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._waited = state["seconds"]["waited"]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f} ms"
