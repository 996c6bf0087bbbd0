"""Count the hookpoint source files whose code runs in a training step, and in a step with a save.

To understand such a step, a reader must open these files. In a quiet step, nothing is logged and nothing is saved. Run the
benchmark with `python benchmarks/files_entered.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import torch

import hookpoint
from hookpoint import Every, Runner
from hookpoint import callbacks as cb

SOURCE = Path(hookpoint.__file__).parent
QUIET, SAVING = 3, 5


class Watched:
    """A loader that records which hookpoint source files each step runs code from.

    A step begins when the loader yields a batch, and ends when the next batch is requested.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = list(batches)
        self.entered: dict[int, list[str]] = {}
        self._now: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        for number, batch in enumerate(self.batches, 1):
            self._now = {}
            sys.setprofile(self._note)
            try:
                yield batch
            finally:
                sys.setprofile(None)
            self.entered[number] = list(self._now)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            self._now[str(path.relative_to(SOURCE))] = None


def measured() -> dict[int, list[str]]:
    """Train a small model. Return a dict from step numbers to the source files whose code ran in that step."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    data = Watched((torch.rand(4, 2), torch.rand(4, 1)) for _ in range(8))
    with TemporaryDirectory() as workdir:
        runner = Runner(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            torch.nn.functional.mse_loss,
            callbacks=[cb.ModelSaver().when(Every(steps=SAVING))],
            extra_callbacks=[],
            monitors=[],
            device="cpu",
            workdir=workdir,
            log_every=0,
        )
        runner.fit(data, epochs=1)
    return data.entered


def main() -> None:
    entered = measured()
    for number, what in ((QUIET, "a quiet training step"), (SAVING, "a step in which a default ModelSaver saves")):
        print(f"{what} enters {len(entered[number])} files")
        for file in entered[number]:
            print(f"  {file}")


if __name__ == "__main__":
    main()
