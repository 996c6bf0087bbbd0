"""GPUMemoryTracker: log the peak GPU memory of each epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import device_indices
from hookpoint.callbacks._shared.extras import optional, warn_once
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run

MB = 1e6


class GPUMemoryTracker(Callback):
    """Log the peak memory that tensors use on each GPU, per epoch.

    The metrics are named `PeakMemory(MB)/gpu:0` and so on, as in tensorpack. One MB is a million bytes. `devices` are PyTorch's
    device numbers. By default, only device 0 is tracked. PyTorch's allocator in this process measures the peak, from the
    beginning to the end of the epoch, including validation. When an epoch begins, the callback resets the peak that
    `torch.cuda.max_memory_allocated` returns. Without torch or without a GPU, the callback does nothing. It logs a warning once
    if torch is missing, or if you pass `devices` and there is no GPU. If a run resumes in the middle of an epoch, the higher of
    the peaks before and after the resume is logged.

    Listens to on_setup, on_epoch_begin and on_epoch_end.

    >>> GPUMemoryTracker(devices=[0, 1]).devices
    (0, 1)
    """

    ranks = "chief"
    keeps = "the peaks of the current epoch"
    step_cost = "nothing; it never waits for a GPU"

    def __init__(self, devices: Iterable[int] | None = None, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.devices = device_indices("GPUMemoryTracker", (0,) if devices is None else devices)
        self._are_requested = devices is not None
        self.may_write = tuple(f"PeakMemory(MB)/gpu:{device}" for device in self.devices)
        self._cuda: Any = None
        self._peaks: dict[int, int] = {}  # bytes by device
        self._in_epoch = False

    def on_setup(self) -> None:
        self._cuda = _cuda(self.name or "GPUMemoryTracker", self.devices, are_requested=self._are_requested)

    def on_run_begin(self) -> None:
        self._peaks, self._in_epoch = {}, False

    def on_epoch_begin(self) -> None:
        self._peaks, self._in_epoch = {}, True
        if self._cuda is not None and self._cuda.is_initialized():  # nothing to reset before CUDA is initialized
            for device in self.devices:
                self._cuda.reset_peak_memory_stats(device)

    def on_epoch_end(self, run: Run) -> None:
        self._update()
        for device, peak in self._peaks.items():
            run.put_scalar(f"PeakMemory(MB)/gpu:{device}", peak / MB)
        self._peaks, self._in_epoch = {}, False

    def on_run_end(self) -> None:
        self._cuda, self._in_epoch = None, False

    def _update(self) -> None:
        if self._cuda is not None:
            for device in self.devices:
                self._peaks[device] = max(self._cuda.max_memory_allocated(device), self._peaks.get(device, 0))

    def state_dict(self) -> dict[str, Any]:
        if self._in_epoch:
            self._update()
        return {"peaks": {str(device): peak for device, peak in self._peaks.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._peaks = {int(device): peak for device, peak in state["peaks"].items()}


def _cuda(owner: str, devices: tuple[int, ...], *, are_requested: bool) -> Any:
    torch = optional(owner, "torch", extra="torch")
    if torch is None:
        return None
    if not torch.cuda.is_available():
        if are_requested:
            warn_once(f"{owner} does nothing: no GPU found")
        return None
    count = torch.cuda.device_count()
    if max(devices) >= count:
        number = f"{count} GPU{'s' * (count > 1)}"
        raise BadArgument(f"{owner}: devices={devices!r}, but PyTorch sees {number}.", give=f"numbers below {count}")
    return torch.cuda
