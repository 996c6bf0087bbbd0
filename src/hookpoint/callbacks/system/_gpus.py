"""Gpus: the utilization of this machine's GPUs, from NVIDIA's management library."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from hookpoint.callbacks._shared.extras import optional, warn_once
from hookpoint.core.errors import BadArgument


class Gpus:
    """This machine's GPUs, with the device numbers that this process uses. Close the object after use."""

    def __init__(self, nvml: Any, handles: dict[int, Any]) -> None:
        self._nvml = nvml
        self._handles = handles

    def utilization(self) -> dict[int, float]:
        """Return, for each GPU, the percentage of time it was busy during the last second or less."""
        return {number: float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) for number, handle in self._handles.items()}

    def close(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:  # the driver is no longer available
            pass


def open_gpus(owner: str, devices: Sequence[int] | None) -> Gpus | None:
    """Open the GPUs in `devices`, or all visible GPUs if `devices` is None.

    Return None if there is no GPU. In this case, log a warning once if `devices` is given.
    """
    nvml = optional(owner, "pynvml", extra="system", name="nvidia-ml-py")
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:  # a machine without a GPU has no driver
        if devices is not None:
            warn_once(f"{owner} does nothing: no GPU found ({error})")
        return None
    gpus = None
    try:
        gpus = _opened(owner, nvml, devices)
    except nvml.NVMLError as error:
        warn_once(f"{owner} does nothing: the GPUs cannot be queried ({error})")
    finally:
        if gpus is None:
            nvml.nvmlShutdown()
    return gpus


def _opened(owner: str, nvml: Any, devices: Sequence[int] | None) -> Gpus | None:
    known = _addresses(nvml)
    wanted = range(len(known)) if devices is None else devices
    if not known:
        if devices is not None:
            warn_once(f"{owner} does nothing: no GPU is visible to this process")
        return None
    if max(wanted) >= len(known):
        number = f"{len(known)} GPU{'s' * (len(known) > 1)}"
        raise BadArgument(f"{owner}: devices={devices!r}, but this process sees {number}.", give=f"numbers below {len(known)}")
    gpus = Gpus(nvml, {number: _handle(nvml, known[number]) for number in wanted})
    gpus.utilization()  # if a device does not support this query, fail now and not in the first epoch
    return gpus


def visible(setting: str | None, count: int) -> list[int | str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects: numbers or UUIDs, up to the first unknown one.

    >>> visible("2,0", 4), visible(None, 2), visible("0,-1,1", 2), visible("GPU-8932f937", 1)
    ([2, 0], [0, 1], [0], ['GPU-8932f937'])
    """
    if setting is None:
        return list(range(count))
    words = [word.strip() for word in setting.split(",")]
    known = takewhile(lambda word: (word.isdecimal() and int(word) < count) or word.startswith(("GPU-", "MIG-")), words)
    return [int(word) if word.isdecimal() else word for word in known]


def _addresses(nvml: Any) -> list[int | str]:
    """Return the indices or UUIDs of the GPUs in torch's order, because CUDA's order may differ from NVML's."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return [f"GPU-{torch.cuda.get_device_properties(number).uuid}" for number in range(torch.cuda.device_count())]
    return visible(os.environ.get("CUDA_VISIBLE_DEVICES"), nvml.nvmlDeviceGetCount())


def _handle(nvml: Any, address: int | str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(address) if isinstance(address, int) else nvml.nvmlDeviceGetHandleByUUID(address)
