"""TFEventWriter: event files for TensorBoard."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.log.records import Record
from hookpoint.core.run.run import Run
from hookpoint.monitors._chart_values import call_each, chart_scalars, finite, to_pixels
from hookpoint.monitors._projector import write_embedding
from hookpoint.monitors._workdir_file import folder_name
from hookpoint.storage.disk import disk

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger("hookpoint")

NEEDED = ("tensorboard", "torch")  # required packages. hookpoint has an extra of the same name for each.
FORMATS = {2: "HW", 3: "HWC", 4: "NHWC"}  # TensorBoard's image formats, by number of dimensions
FILES = "events.out.tfevents.*"
MAX_WAIT_SECONDS = 1.5  # how long to wait for a file name that sorts after the other files
_warned: set[str] = set()
_written: set[Path] = set()  # files that TFEventWriters in this process have created.
_in_use: set[Path] = set()  # the files in _written that are still open


class TFEventWriter(Callback):
    """Write scalars, images, histograms, texts and embeddings for TensorBoard, in `subfolder` of the workdir.

    The x axis is the step. Training values have two curves: `loss` for the mean at each log step, and `epoch/loss` for the mean
    over each epoch. Validation results and single values keep their names. The shape of an image is height x width or height x
    width x channels. The shape of a batch of images is batch x height x width x channels. Integer pixels range from 0 to 255.
    Float pixels range from 0 to 1 or, if any pixel is above 1, from 0 to 255. NaN is black. Histograms leave out nonfinite
    values. A text with a `graph_def` (a model's graph) is also written as a graph. An embedding is written to files for
    TensorBoard's projector, which shows only the newest embedding with each name.

    A resumed run truncates the files to their size at the checkpoint and deletes newer files, so that each value appears once.
    Without a workdir, and for a validation or prediction pass outside a run, the monitor does nothing. Without tensorboard or
    torch, it logs one warning and does nothing.

    >>> loop = Loop([TFEventWriter()], workdir="runs/mine")
    """

    ranks = "chief"
    on_error = "warn"
    keeps: ClassVar[str] = "the sizes of its files"
    step_cost: ClassVar[str] = "nothing (50 microseconds per record on another thread); saving a checkpoint waits for the disk"

    _writing = Lock()  # the monitor's thread writes records while the training thread saves checkpoints

    def __init__(self, subfolder: str = "tensorboard", **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.subfolder = folder_name("TFEventWriter", subfolder, "tensorboard")
        self._folder: Path | None = None
        self._writer: SummaryWriter | None = None
        self._files: set[Path] = set()
        self._purge_step: int | None = None
        self._sizes: dict[str, int] | None = None

    def on_run_begin(self, run: Run) -> None:
        self._close()
        is_enabled = run.workdir is not None and _is_installed()
        self._folder = Path(run.workdir) / self.subfolder if is_enabled else None
        self._purge_step = run.step + 1 if run.resuming else None
        self._sizes = None

    def on_records(self, records: list[Record]) -> None:
        records = [record for record in records if record.kind != "event"]
        if self._folder is None or not records:
            return
        with self._writing:
            if self._must_truncate():
                self._close()
                truncate(self._folder, self._sizes or {})
                self._sizes = None
            if self._writer is None:
                self._writer, self._files = _open(self._folder, self._purge_step)
            try:
                call_each(partial(_write, self._writer, self._folder), records)
            finally:
                self._writer.flush()

    def on_run_end(self) -> None:
        self._folder = None
        self._close()

    def state_dict(self) -> dict[str, Any]:
        if self._folder is None or self._must_truncate():
            return {} if self._sizes is None else {"sizes": dict(self._sizes)}
        try:
            with self._writing:
                if self._writer is not None:
                    self._writer.flush()
                return {"sizes": {path.name: disk.sync_file(path) for path in sorted(self._folder.glob(FILES))}}
        except OSError as error:
            logger.warning("TensorBoard's files may not be on disk: %s; a resumed run may lose values", error)
            return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sizes = dict(state["sizes"]) if "sizes" in state else None

    def _must_truncate(self) -> bool:
        return self._purge_step is not None and self._sizes is not None

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            _in_use.difference_update(self._files)
            writer.close()


def truncate(folder: Path, sizes: Mapping[str, int]) -> None:
    """Truncate the event files named in `sizes` to these sizes, and delete all other event files.

    Do nothing if none of the named files exists, because then the sizes belong to another folder. Two kinds of files are not
    deleted: files that other code in this process has created, and files that another TFEventWriter of the same run has open.
    """
    files = {path.name: path for path in folder.glob(FILES)}
    if sizes and not sizes.keys() & files.keys():
        return
    for name, path in files.items():
        if name in sizes:
            os.truncate(path, min(sizes[name], path.stat().st_size))
        elif path not in _in_use and (path in _written or f".{os.getpid()}." not in name):
            path.unlink()
            _written.discard(path)


def _is_installed() -> bool:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing and not _warned.issuperset(missing):
        _warned.update(missing)
        names, extras = " and ".join(missing), ",".join(missing)
        logger.warning("TFEventWriter writes nothing without %s: pip install 'hookpoint[%s]'", names, extras)
    return not missing


def _open(folder: Path, purge_step: int | None) -> tuple[SummaryWriter, set[Path]]:
    """Open a writer. Return the writer and the path of the event file that it has created.

    The new file makes TensorBoard discard the values in older files from `purge_step` on. TensorBoard reads files in
    alphabetical order. A file name contains a time in seconds, and then numbers without leading zeros. If two files are created
    in the same second, the new file's name may sort before the older file's name. TensorBoard would then also discard the
    values in the new file. In this case, wait for the next second, on the monitor's thread.
    """
    from torch.utils.tensorboard import SummaryWriter

    os.makedirs(folder.parent, mode=0o700, exist_ok=True)
    before = set(folder.glob(FILES))
    deadline = monotonic() + MAX_WAIT_SECONDS
    while True:
        writer = SummaryWriter(str(folder), purge_step=purge_step)
        new = set(folder.glob(FILES)) - before
        if not before or not new or max(before) < min(new) or monotonic() > deadline:  # the clock may have been set back
            _written.update(new)
            _in_use.update(new)
            return writer, new
        writer.close()
        for path in new:
            path.unlink()
        sleep(0.05)


def _write(writer: SummaryWriter, folder: Path, record: Record) -> None:
    if record.kind == "scalars":
        _write_scalars(writer, record)
        return
    for name, value in record.values.items():
        if record.kind == "image":
            pixels = to_pixels(name, value)
            add = writer.add_images if pixels.ndim == 4 else writer.add_image
            add(name, pixels, record.step, walltime=record.time, dataformats=FORMATS[pixels.ndim])
        elif record.kind == "histogram":
            numbers = finite(value)
            if numbers.size:
                writer.add_histogram(name, numbers, record.step, walltime=record.time)
        elif record.kind == "embedding":
            write_embedding(folder, name, value)
        elif record.kind == "text":
            writer.add_text(name, value, record.step, walltime=record.time)
            if hasattr(value, "graph_def"):
                _write_graph(writer, value.graph_def, record)


def _write_scalars(writer: SummaryWriter, record: Record) -> None:
    """Write all scalars of a record as one event, because each `add_scalar` call would cost as much as the whole event."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in chart_scalars(record).items()]
    assert writer.file_writer is not None
    writer.file_writer.add_summary(Summary(value=values), record.step, record.time)


def _write_graph(writer: SummaryWriter, graph_def: bytes, record: Record) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    assert writer.file_writer is not None
    writer.file_writer.add_event(Event(graph_def=graph_def), walltime=record.time)
