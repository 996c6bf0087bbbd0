"""WeightSnapshots: a model's weights at several steps, with one file per step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hookpoint.storage.checkpoint.layout import is_leftover
from hookpoint.storage.disk import disk
from hookpoint.storage.disk.hashing_writer import NewFile

_NAME = re.compile(r"step-(\d{8,})\.safetensors")
CHUNK = 1 << 22  # number of tensor elements to read from each file at a time


class WeightSnapshots:
    """Write and read weights in a folder, with one file per step, such as `step-00001200.safetensors`.

    Files are written atomically. `chunks` holds only a part of each file in memory at a time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def steps(self) -> list[int]:
        """Return the steps for which the folder contains weights, in ascending order."""
        return sorted(int(match[1]) for match in map(_NAME.fullmatch, disk.names(self.folder)) if match)

    def write(self, step: int, weights: Mapping[str, Any]) -> None:
        """Save the model's weights at this step. An existing file for the step is replaced."""
        from hookpoint.storage.checkpoint.weights_file import write_weights

        disk.make_folder(self.folder)
        with disk.replacing(self.path(step)) as staged, NewFile(staged) as file:
            write_weights(weights, file)
        disk.sync_folder(self.folder)

    def remove_all_but(self, steps: Sequence[int]) -> None:
        """Delete the weights saved at all other steps. Also delete temporary files that a killed process left behind."""
        for name in disk.names(self.folder):
            match = _NAME.fullmatch(name)
            if is_leftover(name) or (match and int(match[1]) not in steps):
                disk.remove(self.folder / name)

    def read(self, step: int) -> dict[str, Any]:
        """Return the weights saved at this step."""
        from hookpoint.storage.checkpoint.weights_file import read_weights

        return read_weights(self.path(step))

    def chunks(self, steps: Sequence[int]) -> Iterator[tuple[str, slice, Any]]:
        """Yield the weights in chunks: a name, a slice of the flattened tensor, and its float64 values, one row per step."""
        import torch
        from safetensors import safe_open

        with ExitStack() as opened:
            files = [opened.enter_context(safe_open(self.path(step), framework="pt", device="cpu")) for step in steps]
            for name in files[0].keys():  # noqa: SIM118
                slices = [file.get_slice(name) for file in files]
                shape = slices[0].get_shape()
                if not shape:
                    yield name, slice(0, 1), torch.stack([file.get_tensor(name).double().reshape(1) for file in files])
                    continue
                width = max(1, _product(shape[1:]))
                rows = max(1, CHUNK // width)
                for start in range(0, shape[0], rows):
                    values = torch.stack([one[start : start + rows].double().reshape(-1) for one in slices])
                    yield name, slice(start * width, start * width + values.shape[1]), values


def _product(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
