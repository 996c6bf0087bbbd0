"""Hooked dataset: create samples and batches for a HookedLoader, and call the handlers for each sample and batch.

A loader's index sampler runs in the main process and yields one item per batch, in order. `TaskSampler` adds the position of
the batch to each item, and the item carries this position to the worker that creates the batch. Prefetching therefore never
changes the position that a handler sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count
from typing import Any

from torch.utils.data import get_worker_info

from hookpoint.core.checkpoint.positions import END
from hookpoint.core.data.data_points import BATCH, SAMPLE, BatchPlace, DataPoints
from hookpoint.core.data.data_settings import DataSettings
from hookpoint.core.run.current_run import current_run
from hookpoint.engine.data.seeded_samples import seeded_samples_of


class Task:
    """The indices of one batch, and the position of this batch in the run.

    `Task.latest` is the last task that reached this process, which may be the main process or a worker. Iterable
    datasets need `Task.latest`, because torch does not pass them a task when torch requests the next sample.
    """

    latest: Task | None = None

    def __init__(self, place: BatchPlace, indices: Any) -> None:
        self.place, self.indices = place, indices
        Task.latest = self

    def __reduce__(self) -> tuple[Any, ...]:
        return Task, (self.place, self.indices)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class TaskSampler:
    """Yield the items of another sampler as tasks. Each iteration over this sampler begins a new pass."""

    def __init__(self, sampler: Any, settings: DataSettings, epoch_outside: list[int]) -> None:
        self.sampler, self._settings, self._epoch_outside = sampler, settings, epoch_outside

    def __iter__(self) -> Iterator[Task]:
        run = current_run()
        epoch, mode = (self._epoch_outside[0], None) if run is None else (run.epoch, run.mode)
        settings = self._settings.begin_pass(trains=mode == "train")
        return self._tasks(iter(self.sampler), getattr(self.sampler, "passed_over", 0), epoch, mode, settings)

    def _tasks(self, source: Iterator[Any], first: int, epoch: int, mode: str | None, settings: Any) -> Iterator[Task]:
        numbers = count(first)
        while (indices := next(source, END)) is not END:  # a `for` loop would call iter(source), which may restart the source
            number = next(numbers)
            if self._settings.per_batch:
                settings = self._settings.of_batch(number, trains=mode == "train")
            yield Task(BatchPlace(epoch, mode, number, settings), indices)

    def __len__(self) -> int:
        return len(self.sampler)


class HookedDataset:
    """A dataset for torch's fetchers. Indexing it with a task returns a batch; iterating over it yields samples.

    All other attributes are read from the wrapped dataset, so that a `worker_init_fn` can use `get_worker_info().dataset`.
    """

    def __init__(self, dataset: Any, points: DataPoints, collate: Callable[[Any], Any], *, in_batches: bool) -> None:
        seeded = next(seeded_samples_of(dataset), None)
        vars(self).update(dataset=dataset, _points=points, _collate=collate, _in_batches=in_batches, _seeded=seeded, _worker=())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in vars(self):  # while this object is unpickled, it has no dataset yet
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, task: Task) -> Any:
        data, indices, offered = self.dataset, task.indices, task.place.offered(self._worker_id())
        samples: Any
        if not self._in_batches:
            samples = self._sample(data[indices], indices, offered)
        else:
            fetch = getattr(data, "__getitems__", None)
            samples = fetch(indices) if fetch else [data[index] for index in indices]
            if self._points.listens(SAMPLE):
                samples = [self._sample(sample, index, offered) for sample, index in zip(samples, indices, strict=True)]
        return self._batch(self._collate(samples), indices, task.place)

    def __iter__(self) -> Iterator[Any]:
        return self._stream(iter(self.dataset))

    def _stream(self, source: Iterator[Any]) -> Iterator[Any]:
        for number, sample in enumerate(source):
            assert Task.latest is not None
            yield self._sample(sample, number, Task.latest.place.offered(self._worker_id()))

    def collate_stream(self, samples: Any) -> Any:
        """Create a batch from samples of an iterable dataset."""
        assert Task.latest is not None
        return self._batch(self._collate(samples), None, Task.latest.place)

    def _sample(self, sample: Any, index: Any, offered: dict[str, Any]) -> Any:
        if not self._points.listens(SAMPLE):
            return sample
        offered["index"] = index
        if self._seeded is None:
            return self._points.fire(SAMPLE, sample, offered)
        with self._seeded.seeding(f"{SAMPLE} {index}"):
            return self._points.fire(SAMPLE, sample, offered)

    def _batch(self, batch: Any, indices: Any, place: BatchPlace) -> Any:
        if not self._points.listens(BATCH):
            return batch
        offered = {**place.offered(self._worker_id()), "indices": indices}
        with nullcontext() if self._seeded is None else self._seeded.seeding(f"{BATCH} {place.batch_idx}"):
            return self._points.fire(BATCH, batch, offered)

    def _worker_id(self) -> int | None:
        if not self._worker:  # this is the first sample or batch in this process
            info = get_worker_info()
            vars(self)["_worker"] = (None if info is None else info.id,)
            if info is not None:
                self._points.leave_run()
        number: int | None = self._worker[0]
        return number
