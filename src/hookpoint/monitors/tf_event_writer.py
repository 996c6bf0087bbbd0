"""TFEventWriter: what was logged, for TensorBoard."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.monitors._chart_values import call_each, chart_scalars, finite, to_pixels

if TYPE_CHECKING:
    from typing import Unpack

    from torch.utils.tensorboard import SummaryWriter

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.log.records import Record
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

NEEDED = ("tensorboard", "torch")  # which are also the names of our extras
FORMATS = {2: "HW", 3: "HWC", 4: "NHWC"}  # of images, by their number of dimensions
FILES = "events.out.tfevents.*"
LONGEST_WAIT_SECONDS = 1.5  # for a name that comes after those of other files
_said: set[str] = set()
_written: set[Path] = set()  # by this process


class TFEventWriter(Callback):
    """Write scalars, images, histograms and texts as TensorBoard's event files, in a folder of the workdir.

    The x axis is the step. A training value is `loss` as the mean of each log step, and `epoch/loss` as that of each epoch,
    so that the two never share a curve; validation results and single values keep their names. Images are height x width,
    height x width x channels, or a batch of the latter; integers and floats above 1 count from 0 to 255. Histograms leave out
    what is not finite. A text with a `graph_def`, the graph of a model, is written as a graph, too. A resumed run first
    cuts the files back to where they were when the checkpoint was made, and removes those that came later, so that each value
    is there once. Without a workdir, and for a validation or prediction that is no part of a run, it does nothing; without
    tensorboard or torch it says so once and does nothing.

    Listens to on_run_begin, on_records and on_run_end. Keeps the sizes of its files in the checkpoint. Runs on the chief, and
    never ends a run. A step pays nothing; a checkpoint waits until the files are on disk, and the writing thread takes about
    50 microseconds per record.

    >>> loop = Loop([TFEventWriter()], workdir="runs/mine")
    """

    ranks = "chief"
    on_error = "warn"

    _writing = Lock()  # records come on a thread of their own, checkpoints are made on the one that trains

    def __init__(self, subfolder: str = "tensorboard", **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.subfolder = subfolder
        self._folder: Path | None = None
        self._writer: SummaryWriter | None = None
        self._purge_step: int | None = None
        self._sizes: dict[str, int] | None = None

    def on_run_begin(self, run: Run) -> None:
        self._close()
        is_on = run.workdir is not None and _is_installed()
        self._folder = Path(run.workdir) / self.subfolder if is_on else None
        self._purge_step = run.step + 1 if run.resuming else None
        self._sizes = None

    def on_records(self, records: list[Record]) -> None:
        records = [record for record in records if record.kind != "event"]
        if self._folder is None or not records:
            return
        with self._writing:
            if self._is_to_cut():
                self._close()
                cut_back(self._folder, self._sizes or {})
                self._sizes = None
            if self._writer is None:
                self._writer = _open(self._folder, self._purge_step)
            try:
                call_each(partial(_write, self._writer), records)
            finally:
                self._writer.flush()

    def on_run_end(self) -> None:
        self._folder = None
        self._close()

    def state_dict(self) -> dict[str, Any]:
        if self._folder is None or self._is_to_cut():
            return {} if self._sizes is None else {"sizes": dict(self._sizes)}
        try:
            with self._writing:
                if self._writer is not None:
                    self._writer.flush()
                return {"sizes": {path.name: synced_size(path) for path in sorted(self._folder.glob(FILES))}}
        except OSError as error:
            logger.warning("TensorBoard's files are not known to be on disk: %s; a resumed run may lose values", error)
            return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sizes = dict(state["sizes"]) if "sizes" in state else None

    def _is_to_cut(self) -> bool:
        return self._purge_step is not None and self._sizes is not None

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def cut_back(folder: Path, sizes: Mapping[str, int]) -> None:
    """Cut event files to these sizes, and remove those that are not among them.

    Where none of them is there, they are those of another folder, and nothing is done. Files that others write in this process
    are left alone.
    """
    here = {path.name: path for path in folder.glob(FILES)}
    if sizes and not sizes.keys() & here.keys():
        return
    for name, path in here.items():
        if name in sizes:
            os.truncate(path, min(sizes[name], path.stat().st_size))
        elif path in _written or f".{os.getpid()}." not in name:
            path.unlink()


def synced_size(path: Path) -> int:
    """Return the size of a file that is on disk for good."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def _is_installed() -> bool:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing and not _said.issuperset(missing):
        _said.update(missing)
        names, extras = " and ".join(missing), ",".join(missing)
        logger.warning("TFEventWriter writes nothing without %s: pip install 'hookpoint[%s]'", names, extras)
    return not missing


def _open(folder: Path, purge_step: int | None) -> SummaryWriter:
    """Return a writer with a new file, which tells TensorBoard to forget what it has read from `purge_step` on.

    TensorBoard reads files by name: a second, and numbers of any length. A file whose name came before an older one's would be
    read first, and forgotten with what the older one purges: then the next second is waited for, off the training thread.
    """
    from torch.utils.tensorboard import SummaryWriter

    os.makedirs(folder.parent, mode=0o700, exist_ok=True)
    before = set(folder.glob(FILES))
    deadline = monotonic() + LONGEST_WAIT_SECONDS
    while True:
        writer = SummaryWriter(str(folder), purge_step=purge_step)
        new = set(folder.glob(FILES)) - before
        if not before or not new or max(before) < min(new) or monotonic() > deadline:  # the clock may have been set back
            _written.update(new)
            return writer
        writer.close()
        for path in new:
            path.unlink()
        sleep(0.05)


def _write(writer: SummaryWriter, record: Record) -> None:
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
        elif record.kind == "text":
            writer.add_text(name, value, record.step, walltime=record.time)
            if hasattr(value, "graph_def"):
                _write_graph(writer, value.graph_def, record)


def _write_scalars(writer: SummaryWriter, record: Record) -> None:
    """Write a record's scalars as one event: one `add_scalar` call per value would each cost as much."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in chart_scalars(record).items()]
    assert writer.file_writer is not None
    writer.file_writer.add_summary(Summary(value=values), record.step, record.time)


def _write_graph(writer: SummaryWriter, graph_def: bytes, record: Record) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    assert writer.file_writer is not None
    writer.file_writer.add_event(Event(graph_def=graph_def), walltime=record.time)
