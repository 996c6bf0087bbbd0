"""SimpleMovingAverage: log the mean of a value over a window of steps."""

from __future__ import annotations

from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks.tensors._tensor_reader import Names, TensorReader
from hookpoint.core.callback.callback import Options
from hookpoint.core.log.floats import Floats, as_scalar, floats_one_by_one
from hookpoint.core.log.mean import Mean
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run, now_of


class SimpleMovingAverage(TensorReader):
    """Log the mean of the last `window_size` values as `<name>/SMA`, whenever the step is a multiple of `window_size`.

    `tensors` are names of metrics, or of one-element tensors as in `ProcessTensors`. Each optimizer step contributes one value;
    with gradient accumulation, it is the value of the last batch. The mean is not averaged again over log steps. Savers such
    as `MinSaver` can monitor the mean. If the callback missed the start of a window, that window is skipped. This happens, for
    example, if you add the callback to a run when you resume it. Otherwise, a resumed run logs exactly the same means as an
    uninterrupted run.

    Listens to on_train_iter_end and, for gradients, on_step_begin. Writes `<name>/SMA`.

    >>> with Loop([SimpleMovingAverage(["loss"], window_size=2)]) as run:
    ...     for loss in run.batches([1.0, 2.0, 5.0, 6.0, 9.0]):
    ...         run.log(loss=loss)
    >>> run.monitors.get_history("loss/SMA")
    [(2, 1.5), (4, 5.5)]
    """

    keeps = "the sums of the current window"
    step_cost = "about three microseconds per name; for a value on a GPU, also a small copy that another thread reads later"

    def __init__(self, tensors: Names, window_size: int, **options: Unpack[Options]) -> None:
        super().__init__(tensors, **options)
        self.window_size = integer("SimpleMovingAverage", "window_size", window_size, least=1)
        self.writes = self.may_write = tuple(f"{name}/SMA" for name in self.sources)
        self._floats: Floats = floats_one_by_one
        self._step = 0
        self._is_complete = False
        self._means: dict[str, Mean] = {}
        self._sums: dict[str, list[float]] = {}  # sums over the part of the window before this run

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._floats = machine_of(run).options.floats
        self._step = run.step
        self._is_complete, self._means, self._sums = not run.resuming, {}, {}

    def on_train_iter_end(self, run: Run) -> None:
        step = run.step
        if step == self._step:  # gradients are being accumulated
            return
        values = self.read(run) or {}
        for name, value in values.items():
            value = as_scalar(name, value)
            self._mean(name).add(value.clone() if hasattr(value, "clone") else value, 1.0)
        if step // self.window_size > self._step // self.window_size:
            means, self._means, self._sums = self._means, {}, {}
            if self._is_complete and values:
                self._log(run, means)
            self._is_complete = True
        self._step = step

    def _log(self, run: Run, means: dict[str, Mean]) -> None:
        for mean in means.values():
            mean.close()
        machine_of(run).logbook.put({f"{name}/SMA": mean for name, mean in means.items()}, now_of(run).samples)

    def on_run_end(self) -> None:
        super().on_run_end()
        self._sums, self._means = self._all_sums(), {}  # a Mean object cannot be pickled, but its sums can
        self._floats = floats_one_by_one

    def _mean(self, name: str) -> Mean:
        if name not in self._means:
            self._means[name] = Mean(self._floats).restore(self._sums.pop(name, (0.0, 0.0)))
        return self._means[name]

    def _all_sums(self) -> dict[str, list[float]]:
        return {**self._sums, **{name: mean.state() for name, mean in self._means.items()}}

    def state_dict(self) -> dict[str, Any]:
        # If the loader has no length, an epoch's last step may come after its last iteration, so the run can be ahead of
        # self._step.
        saved_at = self._step if self._run is None else self._run.step
        return {"is_whole": self._is_complete, "sums": self._all_sums(), "step": self._step, "saved_at": saved_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._is_complete, self._means, self._step = state["is_whole"], {}, state["step"]
        self._sums = {name: list(sums) for name, sums in state["sums"].items()}
        if self._run is not None and state["saved_at"] != self._run.step:  # the callback was absent for some steps
            self._is_complete, self._sums, self._step = False, {}, self._run.step
