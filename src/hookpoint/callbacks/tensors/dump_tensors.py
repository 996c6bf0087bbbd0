"""DumpTensors: write tensors of each step to a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.async_array import as_of_now
from hookpoint.callbacks._shared.extras import optional
from hookpoint.callbacks.tensors._tensor_archive import archive, archive_keys
from hookpoint.callbacks.tensors._tensor_dumps import TensorDumps
from hookpoint.callbacks.tensors._tensor_reader import TensorReader
from hookpoint.core.schedule.when import Every

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.callbacks.tensors._named_tensors import Names
    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run


class DumpTensors(TensorReader):
    """Write the tensors of these names to `tensor-dumps/DumpTensor-<step>.npz` in the workdir, after each step.

    Names are those of `ProcessTensors`, and the keys in the file; what is not fit for one, such as a colon, is `_` there.
    `numpy.load(path)` reads it, without pickle. bfloat16 and 8-bit floats, which numpy does not know, are float32 there. Of a
    sharded tensor the file has the chief's part, of a sparse one its values. `prefix` is needed by a second one of this class.

    Each file is there whole or not at all. A run that goes on from a checkpoint first removes the files of later steps, and
    writes them again. A file that cannot be written, as on a full disk, is said and left out. It needs a workdir and numpy.

    Triggered after each optimizer step, unless `.when(...)` says otherwise. Listens to on_train_iter_end and on_run_end, and
    for gradients to on_step_begin. Keeps nothing in the checkpoint, which waits until the files before it are on disk. Runs on
    the chief; the files of another rank end with `-rank1`. A step pays for a copy of each tensor, and waits for neither a GPU
    nor the disk, unless eight files wait to be written.

    >>> with Loop([DumpTensors(["batch"]).when(Every(steps=2))], workdir="runs/dumped") as run:
    ...     for batch in run.batches([1.0, 2.0]): pass
    >>> import numpy
    >>> float(numpy.load("runs/dumped/tensor-dumps/DumpTensor-2.npz")["batch"])
    2.0
    """

    def __init__(self, names: Names, *, prefix: str = "DumpTensor", **options: Unpack[Options]) -> None:
        super().__init__(names, **options)
        self.dumps = TensorDumps("DumpTensors", prefix)
        self.keys = archive_keys("DumpTensors", self.tensors.sources)
        self.when(Every(steps=1))
        self._is_on = False

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self.dumps.check(run)

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._is_on = optional("DumpTensors", "numpy", extra="torch") is not None
        ours = re.compile(rf"{re.escape(self.dumps.prefix)}-(\d+){_rank(run)}\.npz")
        now = run.step
        self.dumps.open(run, lambda name: (found := ours.fullmatch(name)) is not None and int(found[1]) > now)

    def on_trigger(self, run: Run) -> None:
        values = self.tensors.read(run) if self._is_on else None
        if values is not None:
            name = f"{self.dumps.prefix}-{run.step}{_rank(run)}.npz"
            arrays = {self.keys[key]: as_of_now(value) for key, value in values.items()}
            self.dumps.put(lambda: _files(name, arrays))

    def on_run_end(self) -> None:
        super().on_run_end()
        self.dumps.close()

    def state_dict(self) -> dict[str, Any]:
        self.dumps.wait()
        return {}


def _rank(run: Run) -> str:
    return f"-rank{run.rank}" if run.rank else ""


def _files(name: str, arrays: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    yield name, archive(arrays)
