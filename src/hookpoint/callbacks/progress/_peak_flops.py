"""The peak FLOP/s of GPUs, from their data sheets."""

from __future__ import annotations

from typing import Any

# The peak in TFLOP/s for dense matrix multiplication in bfloat16 or float16 with float32 accumulation. Each key is part of a
# device's name. The first match is used, so variants come before the shorter names that they contain.
PEAK_TFLOPS = {
    "B300": 2250.0,
    "B200": 2250.0,
    "B100": 1750.0,
    "GH200": 989.4,
    "H200 NVL": 835.5,
    "H200": 989.4,
    "H100 NVL": 835.5,
    "H100 PCIe": 756.5,
    "H100": 989.4,
    "H800": 989.4,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "A40": 149.7,
    "A30": 165.0,
    "A10G": 70.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "V100-PCIE": 112.0,
    "V100": 125.0,
    "T4": 65.0,
    "RTX 5090": 209.5,
    "RTX 4090": 165.2,
    "RTX 3090 Ti": 80.0,
    "RTX 3090": 71.0,
    "MI325X": 1307.4,
    "MI300X": 1307.4,
    "MI250X": 191.5,  # the value for one die: each of the GPU's two dies is a separate device
    "MI250": 181.0,
}


def peak_flops(device: str) -> float | None:
    """Return a device's peak FLOP/s from its name, or None if the name is not in the table.

    >>> peak_flops("NVIDIA H100 80GB HBM3")
    989400000000000.0
    """
    words = device.replace("-", " ").split()
    for name, tflops in PEAK_TFLOPS.items():
        parts = name.replace("-", " ").split()
        if any(words[place : place + len(parts)] == parts for place in range(len(words))):
            return tflops * 1e12
    return None


def device_name(device: Any) -> str:
    """Return the name of a torch device: "NVIDIA H100 80GB HBM3", or "cpu"."""
    import torch

    if getattr(device, "type", None) == "cuda":
        return str(torch.cuda.get_device_name(device))
    return str(getattr(device, "type", device))
