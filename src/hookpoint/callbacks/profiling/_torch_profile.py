"""TorchProfile: one recording of torch's profiler, from its start to a file and a table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity, profile

_open_ones: set[int] = set()


class TorchProfile:
    """Record what the process and its device do. It is stopped once, whatever happens in between.

    torch has one profiler per process: `is_taken` says whether someone is using it. While one of ours warms up, which torch
    does not tell, it is taken as well: a second one would end the process.
    """

    def __init__(self, what: Mapping[str, Any]) -> None:
        self.uses_device = torch.cuda.is_available()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.uses_device else [])]
        self._profile = profile(activities=activities, acc_events=True, **what)
        self._is_open = False
        self.is_recording = False

    @staticmethod
    def is_taken() -> bool:
        is_on = torch.autograd._profiler_enabled() or autograd_profiler._is_profiler_enabled  # type: ignore[attr-defined]
        return bool(_open_ones or is_on)

    def warm_up(self) -> None:
        """Let the profiler get ready: the first steps with it are slower than they are."""
        if not self._is_open:
            self._profile.prepare_trace()
            self._is_open = True
            _open_ones.add(id(self))

    def record(self) -> None:
        self.warm_up()
        if not self.is_recording:
            self._profile.start_trace()
            self.is_recording = True

    def stop(self) -> None:
        if self._is_open:
            self._is_open = False
            _open_ones.discard(id(self))
            if not self.is_recording:  # there is no other way to end a warm-up
                self._profile.start_trace()
            self._profile.stop_trace()

    def write(self, path: Path) -> None:
        """Write a Chrome trace, compressed if the name ends in .gz; it is there whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}")
        try:
            self._profile.export_chrome_trace(str(unfinished))
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    def table(self, rows: int) -> list[str]:
        """Return a line for each of the operations that took most time, with their own time and how often they ran."""
        averages = self._profile.key_averages()
        of = "device" if self.uses_device and any(_own_time(one, "device") for one in averages) else "cpu"
        operations = [(_own_time(one, of), one) for one in averages if of == "cpu" or _is_operation(one)]
        whole = sum(own for own, _ in operations) or 1.0
        longest = sorted(operations, key=lambda both: -both[0])[:rows]
        width = max((len(_name(one)) for _, one in longest), default=0)
        head = f"{'operation':<{width}}  {f'own {of} time':>16}  {'share':>6}  {'calls':>7}"
        lines = [f"{_name(one):<{width}}  {own / 1000:>13.3f} ms  {own / whole:>6.1%}  {one.count:>7}" for own, one in longest]
        return [head, *lines]


def _own_time(one: Any, of: str) -> float:
    return float(one.self_device_time_total if of == "device" else one.self_cpu_time_total)


def _is_operation(one: Any) -> bool:
    """Say whether a row is an operation: it has the time of its kernels, and a row of theirs would be that time again."""
    return bool(one.device_type == DeviceType.CPU and not one.is_user_annotation)


def _name(one: Any) -> str:
    return str(one.key)[:60]
