"""HookedLoader: a DataLoader with points where its samples and batches are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch.utils.data import DataLoader, IterableDataset

from hookpoint.core.data.data_points import DataPoints
from hookpoint.core.data.data_settings import DataSettings
from hookpoint.core.errors import BadArgument
from hookpoint.engine.data._hooked_dataset import HookedDataset, TaskSampler
from hookpoint.engine.data.seeded_samples import seeded_samples_of


class HookedLoader(DataLoader[Any]):
    """Load data as torch's DataLoader does, with its arguments, and call on_sample and on_batch_made where data is made.

    That is in the workers, or in the main process where there are none. Handlers get the `epoch`, `mode` and `batch_idx` of the
    pass that the data is made for, whatever was prefetched, and after a resume; outside of a run `mode` is None and `epoch`
    what `set_epoch` was told. They get `settings` as they were when the pass began: what training callbacks set reaches every
    worker with the next pass. With `settings_per="batch"` it reaches the next batch that is begun: without workers the one that
    the next step trains on, with workers the one after those that they have begun, `num_workers * prefetch_factor` later; both
    are the same again after a resume. A Runner keeps the settings in its checkpoints; a loop of one's own does with
    `state={"data": loader.settings}`. Where the data set is in `SeededSamples`, handlers' random numbers are the sample's, too.

    Workers have copies of the callbacks: what a handler sets on itself there stays there. Costs 1 microsecond a sample and 4 a
    batch where somebody listens, 80 each where they are seeded, nothing where nobody listens.

    >>> class Harder(Callback):
    ...     def on_sample(self, sample, settings):
    ...         return Replace(sample * settings["strength"])
    >>> loader = HookedLoader([1, 2, 3, 4], batch_size=2, callbacks=[Harder()], settings={"strength": 1})
    >>> loader.settings["strength"] = 10
    >>> list(loader)
    [tensor([10, 20]), tensor([30, 40])]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        *,
        callbacks: Iterable[Any] = (),
        settings: Mapping[str, Any] | None = None,
        settings_per: Literal["pass", "batch"] = "pass",
        **options: Any,
    ) -> None:
        if settings_per not in ("pass", "batch"):
            raise BadArgument(f"HookedLoader: settings_per must be 'pass' or 'batch', got {settings_per!r}.")
        self.data_points = DataPoints(callbacks)
        self.settings = DataSettings(settings, per_batch=settings_per == "batch")
        self._epoch_outside = [0]  # in a list, which copies of the loader share
        super().__init__(dataset, batch_size, **options)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the passes that follow are for, outside of a run; a run says it by itself."""
        self._epoch_outside[0] = epoch
        for samples in seeded_samples_of(self.dataset):
            samples.set_epoch(epoch)

    def _get_iterator(self) -> Any:
        """Return the iterator of a plain DataLoader like this one, but over tasks, which are made into batches with points."""
        if not self.data_points.listens():
            return super()._get_iterator()
        in_batches = self.batch_sampler is not None
        made = HookedDataset(self.dataset, self.data_points, self.collate_fn, in_batches=in_batches)
        tasks = TaskSampler(self._index_sampler, self.settings, self._epoch_outside)
        if isinstance(self.dataset, IterableDataset):
            changes = {"dataset": made, "collate_fn": made.collate_stream, "batch_sampler" if in_batches else "sampler": tasks}
        else:
            changes = {"dataset": made, "collate_fn": as_it_is, "batch_sampler": None, "sampler": tasks}
        plain: DataLoader[Any] = DataLoader.__new__(DataLoader)
        plain.__dict__.update(self.__dict__ | changes)  # setting such attributes is refused
        return plain._get_iterator()


def as_it_is(batch: Any) -> Any:
    """Return a batch that is made already."""
    return batch


def settings_of(train: Any, val: Any) -> dict[str, Any]:
    """Return the settings of loaders that have any, for the checkpoint."""
    loaders = {"fit/data": train, "fit/validation data": val}
    return {name: one.settings for name, one in loaders.items() if isinstance(one, HookedLoader) and one.settings}
