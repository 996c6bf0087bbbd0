"""TimeMonitor: how long epochs and steps take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.callbacks.progress._lap_timer_callback import Timed
from hookpoint.core.callback.callback import Options
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say


class TimeMonitor(Timed):
    """Print how long each epoch took and a step of it, in milliseconds as MindSpore does, and log both in seconds.

    A line reads `Train epoch time: 5120.125 ms, per step time: 20.001 ms`, with the time per step that was spent waiting for
    data if `data_time` is set; a validation gets one that begins with `Eval`, and is not logged. With `data_size` there is a
    line every so many steps, too. Steps are optimizer steps that were made, where MindSpore takes the size of the data set.
    Training time is measured: validation, checkpoints and what callbacks do between epochs are left out. No time is told of an
    epoch in which a validation failed and the run went on: nobody knows it.

    Listens to the begin and end of passes, on_save, on_run_begin and on_run_end; for `data_size` to on_train_iter_end, for
    `data_time` to on_batch_fetch_begin and on_batch_fetch_end. Logs `epoch_seconds`, `step_seconds` and `data_seconds`, and
    with each log step the `step_seconds` since the last one. Keeps in the checkpoint how long the running epoch took so far,
    for how many steps: a resumed one counts as a whole, of the way back only what was read over to find the place in the data.
    Runs on the chief. A step pays nothing, with `data_size` half a microsecond, with `data_time` one; a GPU is waited for where
    a training pass ends, a validation begins or a checkpoint is made.

    >>> monitor = TimeMonitor(data_size=100, data_time=True)
    """

    def __init__(self, data_size: int | None = None, data_time: bool = False, **options: Unpack[Options]) -> None:
        super().__init__("epoch", "log step", "line", **options)
        self.data_size = None if data_size is None else whole("TimeMonitor", "data_size", data_size, least=1)
        self.data_time = data_time
        self.may_write = ("epoch_seconds", "step_seconds", *(["data_seconds"] if data_time else []))
        self._waited = 0.0
        self._validation_began: float | None = None
        handlers: dict[str, Any] = {"on_train_iter_end": self._end_step} if data_size is not None else {}
        if data_time:
            handlers |= {"on_batch_fetch_begin": self._begin_fetch, "on_batch_fetch_end": self._end_fetch}
        for point, handler in handlers.items():  # only what was asked for is called
            setattr(self, point, handler)

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        if not run.resuming:
            self._waited = 0.0
        run.at_log_step(self._at_log_step)

    def on_train_epoch_begin(self, run: Run) -> None:
        super().on_train_epoch_begin(run)
        self._waited = 0.0
        self.start("epoch")

    def on_train_epoch_end(self, run: Run) -> None:
        super().on_train_epoch_end(run)
        epoch, waited = self.done("epoch"), self._waited
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
            line = self.done("line")
            if line.seconds_per_step is not None:  # in the middle of an accumulation window no step was made
                self.start("line")
                say(f"epoch: {run.epoch} step: {run.batch_idx + 1}, per step time: {_ms(line.seconds_per_step)}")

    def _begin_fetch(self, run: Run) -> None:
        if run.mode == "train":
            self._waited -= self.time.clock()

    def _end_fetch(self, run: Run) -> None:
        if run.mode == "train":
            self._waited += self.time.clock()

    def _at_log_step(self, means: Mapping[str, Any]) -> dict[str, float]:
        per_step = self.done("log step").seconds_per_step
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
