"""ModelCheckpoint: save on a schedule, and keep the best checkpoint."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Literal, Unpack

from hookpoint.callbacks._shared.arguments import integer, string
from hookpoint.callbacks._shared.saver import reject_path
from hookpoint.callbacks._shared.schedule_in_run import schedule_in
from hookpoint.callbacks.saving._append_info import AppendInfo
from hookpoint.callbacks.saving._link_names import LinkNames
from hookpoint.callbacks.saving._metric_saver import TrackingSaver
from hookpoint.callbacks.saving.checkpoint_config import CheckpointConfig
from hookpoint.core.callback.callback import Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.checkpoint.store import Keep
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.best import Best, mode_of
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.when import Every
from hookpoint.storage.checkpoint.manifest import EXCEPTION
from hookpoint.storage.retention import KeepAny, KeepNewest


class ModelCheckpoint(TrackingSaver):
    """Save on the schedule of a CheckpointConfig or at the end of each epoch; with `monitor`, also keep the best checkpoint.

    `config` sets how often to save and what to keep, as in MindSpore. Without it, ModelCheckpoint saves every epoch and keeps
    five checkpoints, while MindSpore saves after every step. As in Keras, `save_freq` is "epoch" or a number. A number means
    the number of optimizer steps between two checkpoints. `save_freq` replaces the config's schedule, and `.when(...)` replaces
    both.

    With `monitor`, a new best value of that metric is also saved as `checkpoints/best-<metric>/`. With `save_best_only`, a
    trigger saves a checkpoint only if the metric has a new best value. The best checkpoint is always kept. Of the earlier
    ones, those that the config's retention rules select are kept, and none without a config. With a schedule by steps or
    time, the metric is also checked at the end of each epoch. `mode` is "min", "max" or "auto". With "auto", the metric's
    name determines the mode. The first value must be better than `initial_value_threshold`. Equal values and NaN are not
    better. Raises if the metric is missing. With a step schedule, the value is the mean of the values logged since the last
    trigger.

    `prefix` is the tag of checkpoints saved on schedule. `directory` and `filepath` are not supported, because checkpoints are
    always in the workdir. `save_weights_only` is not supported either: a run needs a complete checkpoint to resume, and each
    checkpoint contains the weights in a separate file. Instead of Orca's `by_epoch` and `interval`, write
    `.when(Every(epochs=n))`.

    `filename` is a template such as `"{epoch:02d}-{val_loss:.3f}"`. The template's fields are `epoch`, `step`, `iteration` and
    metric names. Each checkpoint of this saver also gets a symbolic link with that name in `checkpoints/`. The link is deleted
    with the checkpoint. If two checkpoints get the same name, the link points to the newer one. Characters that are not safe in
    file names are replaced.

    `append_info` is stored in the checkpoint's manifest. It may contain `"epoch_num"`, `"step_num"`, metric names, and dicts
    whose values are constants or functions of the run. `hookpoint show` prints it, `load_info` returns it, and on_load receives
    it as the argument `info`.

    Reads `monitor` and the metrics in `filename`, and sends the event "best". Saves at on_exception if the config sets
    exception_save.

    >>> config = CheckpointConfig(save_checkpoint_steps=1000, keep_checkpoint_max=3)
    >>> ModelCheckpoint("resnet", config=config, monitor="val_loss").rules
    {'resnet': KeepNewest(number=3), 'best-val_loss': KeepNewest(number=1)}
    """

    keeps: ClassVar[str] = "the best value, when it was logged, and when the last checkpoints were saved"
    step_cost: ClassVar[str] = "one comparison; with a step schedule, one addition per step that logs the metric"

    def __init__(
        self,
        prefix: str = "CKP",
        directory: str | PathLike[str] | None = None,
        config: CheckpointConfig | None = None,
        *,
        monitor: str | None = None,
        mode: str = "min",
        save_best_only: bool = False,
        save_freq: int | Literal["epoch"] | None = None,
        initial_value_threshold: float | None = None,
        filepath: str | PathLike[str] | None = None,
        save_weights_only: bool = False,
        filename: str | None = None,
        append_info: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]] | None = None,
        by_epoch: bool | None = None,
        interval: int | None = None,
        async_save: bool = True,
        **options: Unpack[Options],
    ) -> None:
        reject_path("ModelCheckpoint", "directory", directory)
        reject_path("ModelCheckpoint", "filepath", filepath)
        _check_arguments(prefix, save_weights_only, by_epoch, interval)
        better = mode_of("loss" if monitor is None else string("ModelCheckpoint", "monitor", monitor), mode)
        if save_best_only and monitor is None:
            raise BadArgument("ModelCheckpoint: save_best_only=True needs a metric.", write='monitor="val_loss"')
        rules: dict[str, Keep] = {} if save_best_only else {prefix: KeepNewest(5) if config is None else config.keep}
        if monitor is not None:
            best = KeepNewest(1)  # the best checkpoint is the newest one with this tag, and is always kept
            rules[f"best-{monitor}"] = KeepAny(best, config.keep) if save_best_only and config is not None else best
        self._best = Best(better, threshold=_threshold(initial_value_threshold, monitor))
        in_background = async_save and (config is None or config.async_save)
        super().__init__(rules, monitor, self._best, f"best-{monitor}", async_save=in_background, **options)
        set_default_name(self, f"ModelCheckpoint({monitor if save_best_only else prefix})")
        self.prefix = prefix
        self.limits = () if save_best_only else (prefix,)
        self.save_best_only = save_best_only
        self._names = None if filename is None else LinkNames("ModelCheckpoint", filename)
        if self._names is not None:
            self.reads = tuple(dict.fromkeys((*self.reads, *self._names.metrics)))
        self.append_info = AppendInfo(
            "ModelCheckpoint", append_info if config is None else [*config.append_info, *_listed(append_info)]
        )
        self.exception_save = config is not None and config.exception_save
        self._latest: str | None = None
        if save_freq is not None and save_freq != "epoch":
            self.when(Every(steps=integer("ModelCheckpoint", "save_freq", save_freq, least=1)))
        elif save_freq is None and config is not None:
            self.when(config.schedule)

    @property
    def latest_ckpt_file_name(self) -> str | None:
        """The folder of the newest checkpoint, or None before the first checkpoint."""
        return self._latest

    @property
    def best(self) -> Best | None:
        """The best value so far and its step, or None without `monitor`."""
        return None if self._metric is None else self._best

    def link_name(self, run: Run, tags: Collection[str]) -> str | None:
        """Return the link name for a checkpoint with these tags, or None if it gets no link from this saver."""
        return self._names(run) if self._names is not None and self.rules.keys() & set(tags) else None

    def on_trigger(self, run: Run) -> None:
        if not self.save_best_only:
            self.request(run, self.prefix)
        self.save_best(run)

    def on_epoch_end(self, run: Run) -> None:
        super().on_epoch_end(run)
        # Check the metric even if no save is scheduled, because the validation results belong to the current weights. With
        # `save_best_only`, a schedule by epochs decides, but a schedule by steps is never due when validation ends.
        schedule = schedule_in(run, self) if self.save_best_only else None
        if run.epoch_complete and (schedule is None or "iter" in schedule.moments()):
            self.save_best(run, final_only=True)

    def save_incomplete(self, run: Run) -> bool:
        self.save_best(run, final_only=True)
        return self.save_best_only

    def on_exception(self, run: Run) -> None:
        if self.exception_save:
            run.save(EXCEPTION, keep=KeepNewest(1))

    def on_save(self, tags: Sequence[str], path: Any) -> None:  # type: ignore[override]
        super().on_save(tags)
        self._latest = str(path)

    def on_load(self, path: Any) -> None:
        self._latest = str(path)

    def reset(self) -> None:
        super().reset()
        self._latest = None


def _listed(given: Any) -> list[Any]:
    return [] if given is None else [given] if isinstance(given, str | Mapping) else list(given)


def _threshold(value: Any, monitor: str | None) -> float | None:
    """Return the threshold if it is a number, which may be infinite, or None."""
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        raise BadArgument(f"ModelCheckpoint: initial_value_threshold must be a number, got {value!r}.")
    if monitor is None:
        raise BadArgument("ModelCheckpoint: initial_value_threshold needs a metric.", write='monitor="val_loss"')
    return value


def _check_arguments(prefix: Any, save_weights_only: bool, by_epoch: bool | None, interval: int | None) -> None:
    if not isinstance(prefix, str) or not prefix or any(character in prefix for character in "/\\{}"):
        write = 'prefix="resnet", and pass workdir="runs/resnet" to the Runner or Loop'
        raise BadArgument(f"ModelCheckpoint: prefix must be a name, not a path or a template, got {prefix!r}.", write=write)
    if save_weights_only:
        problem = "save_weights_only=True is not supported; a run resumes from a complete checkpoint"
        raise BadArgument(f"ModelCheckpoint: {problem}.", leave="it out; each checkpoint contains model.safetensors")
    if by_epoch is not None or interval is not None:
        unit = "epochs" if by_epoch in (None, True) else "iterations"
        schedule = f".when(Every({unit}={max(interval or 1, 1)}))"
        raise BadArgument("ModelCheckpoint takes a schedule, not by_epoch= and interval=.", write=schedule)
