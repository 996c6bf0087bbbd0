"""GPUUtilizationTracker: log GPU utilization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import device_indices
from hookpoint.callbacks.system._background_sampler import Sampler
from hookpoint.callbacks.system._gpus import Gpus, open_gpus
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.run.run import Run


class GPUUtilizationTracker(Callback):
    """Log the percentage of each epoch's training time during which each GPU was busy.

    The metrics are named `GPUUtil/0` and so on, as in tensorpack. `devices` contains the numbers of the GPUs to measure,
    counted in the order of CUDA_VISIBLE_DEVICES. By default, all GPUs that this process can use are measured.

    The value is NVIDIA's figure for the whole device, including other processes: the percentage of time in which at least one
    kernel was running. The value is sampled every second during training passes, not during validation. A pass shorter than a
    second has no sample. In a resumed epoch, the average includes the samples from before the interruption.

    Without nvidia-ml-py (extra `system`) or without a GPU, the callback does nothing. It logs a warning once if the package is
    missing, or if you pass `devices` and there is no GPU. If the driver fails, the run continues without these metrics.

    Listens to the beginning and end of passes, on_epoch_end, on_run_begin and on_run_end.

    >>> GPUUtilizationTracker(devices=[0, 1]).devices
    (0, 1)
    """

    ranks = "chief"
    keeps = "the sums over the current epoch's samples"
    step_cost = "nothing; a thread queries the driver"

    def __init__(self, devices: Iterable[int] | None = None, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.devices = None if devices is None else device_indices("GPUUtilizationTracker", devices)
        self.may_write = tuple(f"GPUUtil/{number}" for number in self.devices or ())
        self.writes_anything = devices is None
        self._sums: dict[int, tuple[float, int]] = {}  # sum of percentages and number of samples, by GPU
        self._gpus: Gpus | None = None
        self._sampler: Sampler | None = None
        self._in_training = False

    def on_run_begin(self, run: Run) -> None:
        self.on_run_end()
        self._run = run
        self._sums = {}
        owner = self.name or "GPUUtilizationTracker"
        self._gpus = open_gpus(owner, self.devices)
        if self._gpus is not None:
            self._sampler = Sampler(owner, self._gpus.utilization, self._add)

    def on_train_epoch_begin(self) -> None:
        self._in_training = True
        self._turn(on=True)

    def on_val_epoch_begin(self) -> None:
        self._turn(on=False)

    def on_val_epoch_end(self) -> None:
        self._turn(on=self._in_training)

    on_pred_epoch_begin, on_pred_epoch_end = on_val_epoch_begin, on_val_epoch_end

    def on_train_epoch_end(self) -> None:
        self._in_training = False
        self._turn(on=False)

    def on_epoch_end(self, run: Run) -> None:
        sums, self._sums = self._sums, {}
        for number, (total, count) in sums.items():
            run.put_scalar(f"GPUUtil/{number}", total / count)

    def on_run_end(self) -> None:
        sampler, self._sampler = self._sampler, None
        gpus, self._gpus = self._gpus, None
        self._in_training = False
        if sampler is not None:
            sampler.close()
        if gpus is not None:
            gpus.close()
        self._run = None

    def _add(self, sample: Mapping[int, float]) -> None:
        if self._run is not None and not self._run.resuming:  # while resuming, data is read without training
            for number, percent in sample.items():
                total, count = self._sums.get(number, (0.0, 0))
                self._sums[number] = (total + percent, count + 1)

    def _turn(self, *, on: bool) -> None:
        if self._sampler is not None:
            self._sampler.turn(on=on)

    def state_dict(self) -> dict[str, Any]:
        sums = dict(self._sums)  # a copy, because another thread adds to the original
        return {"sums": {str(number): list(both) for number, both in sums.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums = {int(number): (total, count) for number, (total, count) in state["sums"].items()}
