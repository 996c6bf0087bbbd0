"""SimpleMovingAverage: the mean of a value over so many steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.callbacks.tensors._tensor_reader import TensorReader
from hookpoint.core.log.metrics import Floats, Mean, as_scalar, floats_one_by_one
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import now_of

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.callbacks.tensors._named_tensors import Names
    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run


class SimpleMovingAverage(TensorReader):
    """Log the mean of the last `window_size` values as `<name>/SMA`, whenever the step is a multiple of `window_size`.

    `tensors` are names of metrics, or of tensors of one element as in `ProcessTensors`. There is a value for each optimizer
    step: with accumulation it is that of the window's last batch. What is logged stands for itself, beside the means of log
    steps, and may be watched by a saver. A window that was not seen from its begin on, as in a run that is resumed with this
    callback for the first time, is left out.

    Listens to on_train_iter_end, and for gradients to on_step_begin. Writes `<name>/SMA`. Keeps the sums of the window in the
    checkpoint, so that the means of a resumed run are exactly those of one that was not interrupted. Runs on the chief. A step
    pays about three microseconds per name, and for a value on a GPU a small copy there: it is read late, off the training
    thread.

    >>> with Loop([SimpleMovingAverage(["loss"], window_size=2)]) as run:
    ...     for loss in run.batches([1.0, 2.0, 5.0, 6.0, 9.0]):
    ...         run.log(loss=loss)
    >>> run.monitors.get_history("loss/SMA")
    [(2, 1.5), (4, 5.5)]
    """

    def __init__(self, tensors: Names, window_size: int, **options: Unpack[Options]) -> None:
        super().__init__(tensors, **options)
        self.window_size = whole("SimpleMovingAverage", "window_size", window_size, least=1)
        self.writes = self.may_write = tuple(f"{name}/SMA" for name in self.tensors.sources)
        self._floats: Floats = floats_one_by_one
        self._step = 0
        self._is_whole = False
        self._means: dict[str, Mean] = {}
        self._sums: dict[
            str, list[float]
        ] = {}  # of a window that was begun before: those of a checkpoint, or of a run that ended

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._floats = machine_of(run).options.floats
        self._step = run.step
        if not run.resuming:
            self._is_whole, self._means, self._sums = True, {}, {}

    def on_train_iter_end(self, run: Run) -> None:
        step = run.step
        if step == self._step:  # it stands while a window of gradients is gathered
            return
        values = self.tensors.read(run) or {}
        for name, value in values.items():
            value = as_scalar(name, value)
            self._mean(name).add(value.clone() if hasattr(value, "clone") else value, 1.0)
        if step // self.window_size > self._step // self.window_size:
            means, self._means, self._sums = self._means, {}, {}
            if self._is_whole and values:
                self._log(run, means)
            self._is_whole = True
        self._step = step

    def _log(self, run: Run, means: dict[str, Mean]) -> None:
        for mean in means.values():
            mean.close()
        machine_of(run).logbook.put({f"{name}/SMA": mean for name, mean in means.items()}, now_of(run).samples)

    def on_run_end(self) -> None:
        super().on_run_end()
        self._sums, self._means = self._all_sums(), {}  # which can be pickled
        self._floats = floats_one_by_one

    def _mean(self, name: str) -> Mean:
        if name not in self._means:
            self._means[name] = Mean(self._floats).restore(self._sums.pop(name, (0.0, 0.0)))
        return self._means[name]

    def _all_sums(self) -> dict[str, list[float]]:
        return {**self._sums, **{name: mean.state() for name, mean in self._means.items()}}

    def state_dict(self) -> dict[str, Any]:
        # The last step of an epoch whose end nobody knew comes after its last iteration: the run may be further than this is.
        saved_at = self._step if self._run is None else self._run.step
        return {"is_whole": self._is_whole, "sums": self._all_sums(), "step": self._step, "saved_at": saved_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._is_whole, self._means, self._step = state["is_whole"], {}, state["step"]
        self._sums = {name: list(sums) for name, sums in state["sums"].items()}
        if self._run is not None and state["saved_at"] != self._run.step:  # it was left out of the run for some steps
            self._is_whole, self._sums, self._step = False, {}, self._run.step
