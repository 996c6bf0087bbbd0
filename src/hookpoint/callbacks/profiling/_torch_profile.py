"""TorchProfile: one recording with torch's profiler."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity, profile

_open_profiles: set[int] = set()


class TorchProfile:
    """Record this process's operations on the CPU and, if available, the GPU. `stop` may be called at any time.

    torch has one profiler per process. `is_taken` returns whether this profiler is in use. torch does not report a profiler
    that is warming up, and starting a second one would crash the process, so our own profilers are tracked here.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.uses_device = torch.cuda.is_available()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.uses_device else [])]
        self._profile = profile(activities=activities, acc_events=True, **options)
        self._is_open = False
        self.is_recording = False

    @staticmethod
    def is_taken() -> bool:
        is_on = torch.autograd._profiler_enabled() or autograd_profiler._is_profiler_enabled  # type: ignore[attr-defined]
        return bool(_open_profiles or is_on)

    def warm_up(self) -> None:
        """Start the profiler, but do not record yet, because the first steps after the start are slower than usual."""
        if not self._is_open:
            self._profile.prepare_trace()
            self._is_open = True
            _open_profiles.add(id(self))

    def record(self) -> None:
        self.warm_up()
        if not self.is_recording:
            self._profile.start_trace()
            self.is_recording = True

    def stop(self) -> None:
        if self._is_open:
            self._is_open = False
            _open_profiles.discard(id(self))
            if not self.is_recording:  # required to end a warm-up
                self._profile.start_trace()
            self._profile.stop_trace()

    def write(self, path: Path) -> None:
        """Write a Chrome trace atomically, compressed if the name ends in .gz."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}")
        try:
            self._profile.export_chrome_trace(str(unfinished))
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    def table(self, rows: int) -> list[str]:
        """Return the most expensive operations as lines, each with its self time and its number of calls."""
        averages = self._profile.key_averages()
        kind = "device" if self.uses_device and any(event.self_device_time_total for event in averages) else "cpu"
        # An operation's time includes its kernels, so separate rows for kernels would count that time twice.
        operations = [
            (float(getattr(event, f"self_{kind}_time_total")), event.count, str(event.key)[:60])
            for event in averages
            if kind == "cpu" or (event.device_type == DeviceType.CPU and not event.is_user_annotation)
        ]
        total = sum(own for own, *_ in operations) or 1.0
        longest = sorted(operations, key=lambda operation: -operation[0])[:rows]
        width = max((len(name) for *_, name in longest), default=0)
        head = f"{'operation':<{width}}  {f'own {kind} time':>16}  {'share':>6}  {'calls':>7}"
        return [head, *(f"{name:<{width}}  {own / 1000:>13.3f} ms  {own / total:>6.1%}  {n:>7}" for own, n, name in longest)]
