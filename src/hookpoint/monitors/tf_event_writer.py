"""TFEventWriter: what was logged, for TensorBoard."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback import Callback

if TYPE_CHECKING:
    from typing import Unpack

    from torch.utils.tensorboard import SummaryWriter

    from hookpoint.core.callback import Options
    from hookpoint.core.records import Record
    from hookpoint.core.run import Run

logger = logging.getLogger("hookpoint")

NEEDED = ("tensorboard", "torch")  # which are also the names of our extras
_said: set[str] = set()


class TFEventWriter(Callback):
    """Write scalars, images, histograms and texts as TensorBoard's event files, in a folder of the workdir.

    The x axis is the step. A training value is `loss` as the mean of each log step, and `epoch/loss` as that of each epoch,
    so that the two never share a curve; validation results and single values keep their names. Images are height x width,
    height x width x channels, or a batch of the latter; integers and floats above 1 count from 0 to 255. A resumed run hides
    what was written after the step it starts from. Without a workdir, and for a validation or prediction that is no part of
    a run, it does nothing; without tensorboard or torch it says so once and does nothing.

    Listens to on_run_begin, on_records and on_run_end. Keeps nothing in the checkpoint. Runs on the chief, and never ends a
    run. A step pays nothing; the writing thread takes about 50 microseconds per record.

    >>> loop = Loop([TFEventWriter()], workdir="runs/mine")
    """

    ranks = "chief"
    on_error = "warn"

    def __init__(self, subfolder: str = "tensorboard", **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.subfolder = subfolder
        self._is_on = False
        self._writer: SummaryWriter | None = None
        self._purge_step: int | None = None

    def on_run_begin(self, run: Run) -> None:
        self._close()
        self._is_on = run.workdir is not None and _is_installed()
        self._purge_step = run.step + 1 if run.resuming else None

    def on_records(self, records: list[Record], run: Run) -> None:
        records = [record for record in records if record.kind != "event"]
        if not self._is_on or not records:
            return
        if self._writer is None:
            self._writer = _open(Path(run.workdir), self.subfolder, self._purge_step)
        failures = []
        for record in records:
            try:
                _write(self._writer, record)
            except Exception as error:  # the others are written all the same
                failures.append(error)
        self._writer.flush()
        if failures:
            raise failures[0]

    def on_run_end(self) -> None:
        self._is_on = False
        self._close()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _is_installed() -> bool:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing and not _said.issuperset(missing):
        _said.update(missing)
        names, extras = " and ".join(missing), ",".join(missing)
        logger.warning("TFEventWriter writes nothing without %s: pip install 'hookpoint[%s]'", names, extras)
    return not missing


def _open(workdir: Path, subfolder: str, purge_step: int | None) -> SummaryWriter:
    from torch.utils.tensorboard import SummaryWriter

    os.makedirs(workdir, mode=0o700, exist_ok=True)
    return SummaryWriter(str(workdir / subfolder), purge_step=purge_step)


def _write(writer: SummaryWriter, record: Record) -> None:
    if record.kind == "scalars":
        _write_scalars(writer, record)
        return
    for name, value in record.values.items():
        if record.kind == "image":
            _write_image(writer, name, value, record)
        elif record.kind == "histogram":
            writer.add_histogram(name, _array(value), record.step, walltime=record.time)
        elif record.kind == "text":
            writer.add_text(name, value, record.step, walltime=record.time)


def _write_scalars(writer: SummaryWriter, record: Record) -> None:
    """Write a record's scalars as one event: `add_scalar` for each would take as long for every one of them."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    prefix = "epoch/" if record.at == "epoch" and record.mode == "train" else ""
    values = [Summary.Value(tag=prefix + name, simple_value=value) for name, value in record.scalars().items()]
    assert writer.file_writer is not None
    writer.file_writer.add_summary(Summary(value=values), record.step, record.time)


def _write_image(writer: SummaryWriter, name: str, image: Any, record: Record) -> None:
    pixels = _array(image)
    if pixels.dtype != "uint8" and (pixels.dtype.kind in "iu" or pixels.max(initial=0) > 1):
        pixels = pixels.clip(0, 255).astype("uint8")
    shape = {2: "HW", 3: "HWC", 4: "NHWC"}.get(pixels.ndim)
    if shape is None:
        raise ValueError(f"image '{name}' has shape {pixels.shape}; height x width x channels, or a batch of such, is shown")
    add = writer.add_images if shape == "NHWC" else writer.add_image
    add(name, pixels, record.step, walltime=record.time, dataformats=shape)


def _array(values: Any) -> Any:
    import numpy

    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # which numpy does not know
            values = values.float()
    return numpy.asarray(values)
