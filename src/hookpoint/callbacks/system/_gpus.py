"""Gpus: how busy the GPUs of this machine are, by NVIDIA's management library."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from hookpoint.callbacks._shared.extras import optional, say_once
from hookpoint.core.errors import BadArgument


class Gpus:
    """Some GPUs of this machine, by the numbers that this process knows them by. Close it when it is not needed any more."""

    def __init__(self, nvml: Any, handles: dict[int, Any]) -> None:
        self._nvml = nvml
        self._handles = handles

    def utilization(self) -> dict[int, float]:
        """Return for each GPU in how many percent of the last moments, a second at most, it was at work."""
        return {number: float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) for number, handle in self._handles.items()}

    def close(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:  # the driver is gone already
            pass


def open_gpus(owner: str, devices: Sequence[int] | None) -> Gpus | None:
    """Return these GPUs, or all that this process may use; None where there is none, said once if some were asked for."""
    nvml = optional(owner, "pynvml", extra="system", name="nvidia-ml-py")
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:  # no driver is how a machine without a GPU looks
        if devices is not None:
            say_once(f"{owner} finds no GPU ({error}), and does nothing")
        return None
    try:
        known = _addresses(nvml)
        wanted = range(len(known)) if devices is None else devices
        if not known:
            if devices is not None:
                say_once(f"{owner} finds no GPU that this process may use, and does nothing")
        elif max(wanted) >= len(known):
            number = f"{len(known)} GPU{'s' * (len(known) > 1)}"
            raise BadArgument(
                f"{owner}(devices={devices!r}): this process may use {number}.", give=f"numbers below {len(known)}"
            )
        else:
            gpus = Gpus(nvml, {number: _handle(nvml, known[number]) for number in wanted})
            gpus.utilization()  # which some devices do not know: better now than in the first epoch
            return gpus
    except nvml.NVMLError as error:
        say_once(f"{owner} cannot ask the GPUs ({error}), and does nothing")
    except BaseException:
        nvml.nvmlShutdown()
        raise
    nvml.nvmlShutdown()
    return None


def visible(setting: str | None, count: int) -> list[int | str]:
    """Return what CUDA_VISIBLE_DEVICES leaves of the machine's GPUs: numbers or UUIDs, up to the first that there is not.

    >>> visible("2,0", 4), visible(None, 2), visible("0,-1,1", 2), visible("GPU-8932f937", 1)
    ([2, 0], [0, 1], [0], ['GPU-8932f937'])
    """
    if setting is None:
        return list(range(count))
    found: list[int | str] = []
    for word in (word.strip() for word in setting.split(",")):
        if word.isdecimal() and int(word) < count:
            found.append(int(word))
        elif word.startswith(("GPU-", "MIG-")):
            found.append(word)
        else:
            break
    return found


def _addresses(nvml: Any) -> list[int | str]:
    """Return where to find the GPUs: by what torch says where it uses them, as CUDA may number them in another order."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return [f"GPU-{torch.cuda.get_device_properties(number).uuid}" for number in range(torch.cuda.device_count())]
    return visible(os.environ.get("CUDA_VISIBLE_DEVICES"), nvml.nvmlDeviceGetCount())


def _handle(nvml: Any, address: int | str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(address) if isinstance(address, int) else nvml.nvmlDeviceGetHandleByUUID(address)
