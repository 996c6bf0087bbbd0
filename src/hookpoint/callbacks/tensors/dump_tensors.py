"""DumpTensors: write the tensors of each step to a file."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.async_array import snapshot
from hookpoint.callbacks.tensors._tensor_dumps import TensorDumper
from hookpoint.callbacks.tensors._tensor_reader import Names
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.when import Every

UNSAFE = re.compile(r"[^\w .+=@()\[\]-]", re.ASCII)


class DumpTensors(TensorDumper):
    """Write tensors to `tensor-dumps/DumpTensor-<step>.npz` in the workdir after each step.

    `names` has the same form as in `ProcessTensors`. The names are the keys in the file, with `_` in place of characters such
    as a colon. `numpy.load(path)` reads the file without pickle. bfloat16 and 8-bit floats, which numpy lacks, are stored as
    float32. For a sharded tensor, the file contains only the chief's shard; for a sparse tensor, only the values. A second
    DumpTensors needs another `prefix`.

    Files are written atomically. A resumed run first removes the files from steps after its checkpoint, and writes them again.
    If a file cannot be written, for example because the disk is full, a warning is logged and the file is skipped. Needs a
    workdir and numpy.

    Triggered after each optimizer step, unless `.when(...)` says otherwise. Listens to on_train_iter_end, on_run_end and, for
    gradients, on_step_begin. A checkpoint is written only after all earlier files are on disk. On ranks other than the chief,
    file names end with `-rank1` and so on.

    >>> with Loop([DumpTensors(["batch"]).when(Every(steps=2))], workdir="runs/dumped") as run:
    ...     for batch in run.batches([1.0, 2.0]): pass
    >>> import numpy
    >>> float(numpy.load("runs/dumped/tensor-dumps/DumpTensor-2.npz")["batch"])
    2.0
    """

    step_cost = (
        "a copy of each tensor, without waiting for a GPU or the disk; "
        "if eight files are waiting to be written, the step waits for the oldest one"
    )
    name_pattern = r"-(?P<step>\d+)"
    file_type = ".npz"
    package: ClassVar = {"package": "numpy", "extra": "torch"}

    def __init__(self, names: Names, *, prefix: str = "DumpTensor", **options: Unpack[Options]) -> None:
        super().__init__(names, prefix, **options)
        self.keys = archive_keys(self.owner, self.sources)
        self.when(Every(steps=1))

    def dump(self, run: Run, values: dict[str, Any]) -> None:
        name = f"{self.dumps.prefix}-{run.step}{self.file_end(run)}"
        arrays = {self.keys[key]: snapshot(value) for key, value in values.items()}
        self.dumps.put(lambda: [(name, archive(arrays))])


def archive_key(name: str) -> str:
    """Return a name that is safe in an archive: unpacking the archive never writes outside the target folder.

    >>> archive_key("outputs/logits"), archive_key("../a:b//c")
    ('outputs/logits', '_/a_b/_/c')
    """
    parts = (UNSAFE.sub("_", part) for part in name.split("/"))
    return "/".join(part if part.strip(". ") else "_" for part in parts)


def archive_keys(owner: str, names: Iterable[str]) -> dict[str, str]:
    """Return the archive key for each name; raise if two names have the same key."""
    owners: dict[str, str] = {}
    for name in names:
        key = archive_key(name)
        if key in owners:
            raise BadArgument(f"{owner}: '{owners[key]}' and '{name}' would both be '{key}' in the file.", rename="one of them")
        owners[key] = name
    return {name: key for key, name in owners.items()}


def archive(arrays: Mapping[str, Any]) -> bytes:
    """Return the bytes of an .npz file that contains the arrays and no pickled objects. Equal arrays give equal bytes.

    This function replaces `numpy.savez`, which writes timestamps and does not allow an array named "file".
    """
    import numpy

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for key, array in arrays.items():
            with file.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                numpy.lib.format.write_array(member, numpy.asanyarray(array), allow_pickle=False)
    return content.getvalue()
