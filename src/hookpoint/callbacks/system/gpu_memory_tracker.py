"""GPUMemoryTracker: the most memory that an epoch took on the GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.arguments import devices_given
from hookpoint.callbacks._shared.extras import optional, say_once
from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run

MB = 1e6


class GPUMemoryTracker(Callback):
    """Log the most memory that tensors took at once on each of these GPUs, in each epoch.

    The values are `PeakMemory(MB)/gpu:0` and so on, tensorpack's names; a MB is a million bytes. `devices` are numbered as
    PyTorch numbers them; None is the first one. It is the peak of PyTorch's allocator from the begin of the epoch to its end,
    validation included, for this process alone. The allocator's own counter, `torch.cuda.max_memory_allocated`, is set back
    at the begin of each epoch. Without torch or without a GPU it does nothing, and says so once if torch or GPUs that
    `devices` names are missing.

    Listens to on_setup, on_epoch_begin and on_epoch_end. Keeps the peaks of the running epoch in the checkpoint: one that is
    resumed in its middle has the higher one of its parts. Runs on the chief. A step pays nothing, and nothing waits for a GPU.

    >>> GPUMemoryTracker(devices=[0, 1]).devices
    (0, 1)
    """

    ranks = "chief"

    def __init__(self, devices: Iterable[int] | None = None, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.devices = devices_given("GPUMemoryTracker", (0,) if devices is None else devices)
        self._are_asked_for = devices is not None
        self.may_write = tuple(f"PeakMemory(MB)/gpu:{device}" for device in self.devices)
        self._cuda: Any = None
        self._peaks = Peaks()
        self._in_epoch = False

    def on_setup(self) -> None:
        self._cuda = _cuda(self.name or "GPUMemoryTracker", self.devices, are_asked_for=self._are_asked_for)

    def on_run_begin(self, run: Run) -> None:
        if not run.resuming:
            self._peaks, self._in_epoch = Peaks(), False

    def on_epoch_begin(self) -> None:
        self._peaks, self._in_epoch = Peaks(), True
        if self._cuda is not None and self._cuda.is_initialized():  # before that there is nothing to set back
            for device in self.devices:
                self._cuda.reset_peak_memory_stats(device)

    def on_epoch_end(self, run: Run) -> None:
        self._look()
        for device, peak in self._peaks.of.items():
            run.put_scalar(f"PeakMemory(MB)/gpu:{device}", peak / MB)
        self._peaks, self._in_epoch = Peaks(), False

    def on_run_end(self) -> None:
        self._cuda, self._in_epoch = None, False

    def _look(self) -> None:
        if self._cuda is not None:
            for device in self.devices:
                self._peaks.see(device, self._cuda.max_memory_allocated(device))

    def state_dict(self) -> dict[str, Any]:
        if self._in_epoch:
            self._look()
        return {"peaks": {str(device): peak for device, peak in self._peaks.of.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._peaks = Peaks({int(device): peak for device, peak in state["peaks"].items()})


class Peaks:
    """The highest number of bytes that was seen of each device."""

    def __init__(self, of: dict[int, int] | None = None) -> None:
        self.of = of or {}

    def see(self, device: int, in_use_bytes: int) -> None:
        self.of[device] = max(in_use_bytes, self.of.get(device, 0))


def _cuda(owner: str, devices: tuple[int, ...], *, are_asked_for: bool) -> Any:
    torch = optional(owner, "torch", extra="torch")
    if torch is None:
        return None
    if not torch.cuda.is_available():
        if are_asked_for:
            say_once(f"{owner} finds no GPU, and does nothing")
        return None
    count = torch.cuda.device_count()
    if max(devices) >= count:
        raise BadArgument(
            f"{owner}(devices={devices!r}): PyTorch sees {count} GPU{'s' * (count > 1)}.", give=f"numbers below {count}"
        )
    return torch.cuda
