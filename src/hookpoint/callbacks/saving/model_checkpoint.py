"""ModelCheckpoint: checkpoints by steps, by time, or of the best."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from hookpoint.callbacks._shared.saver import Saver, is_in_training, named, positive, refuse_place
from hookpoint.callbacks.saving._best_tracker import BestWatch
from hookpoint.callbacks.saving.checkpoint_config import CheckpointConfig
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.checkpoint.store import Keep
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.best import Best, mode_of
from hookpoint.core.schedule.when import Every
from hookpoint.storage.workdir.retention import KeepNewest

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run

EXCEPTION = "exception"  # the tag of what a loop writes after an exception


class ModelCheckpoint(Saver):
    """Save by a CheckpointConfig, or at the end of each epoch, and keep the best where a metric says which that is.

    As in MindSpore, `config` says how often and what is kept; without one it saves each epoch and keeps five, where MindSpore
    would save after each step. As in Keras, `save_freq` is "epoch" or a number of batches, which count as optimizer steps here,
    and replaces the config's schedule. `.when(...)` replaces both.

    With `monitor` a new best of that metric is kept as `checkpoints/best-<metric>/` too; with `save_best_only` nothing else is
    saved on schedule. `mode` is "min", "max", or "auto", which goes by the metric's name. A first value has to be better than
    `initial_value_threshold`. Equal is not better, NaN never is, and a missing metric is an error.

    `prefix` is the tag of what is saved on schedule. Folders have names of their own, in the workdir: `directory` and
    `filepath` are refused. So are `save_weights_only`, as a run goes on from a checkpoint and the weights are a file of their
    own in it, and Orca's `by_epoch` and `interval`, which are `.when(Every(epochs=n))`.

    Listens to on_epoch_end and, by schedule, to on_iter_end; to on_exception where the config says exception_save; to on_save.
    Reads `monitor`, sends the event "best". Keeps the best value, its step and the steps it last saved at in the checkpoint.
    Runs on all ranks. A step pays for a comparison.

    With a step schedule it looks at the mean of what was logged since it last looked; a
    step that logs the metric pays for an addition then.

    >>> config = CheckpointConfig(save_checkpoint_steps=1000, keep_checkpoint_max=3)
    >>> ModelCheckpoint("resnet", config=config, monitor="val_loss").rules
    {'resnet': KeepNewest(number=3), 'best-val_loss': KeepNewest(number=1)}
    """

    reads_windows = True

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
        by_epoch: bool | None = None,
        interval: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        refuse_place("ModelCheckpoint", "directory", directory)
        refuse_place("ModelCheckpoint", "filepath", filepath)
        _refuse_others(prefix, save_weights_only, by_epoch, interval)
        better = mode_of("loss" if monitor is None else named("ModelCheckpoint", "monitor", monitor), mode)
        if save_best_only and monitor is None:
            raise BadArgument("ModelCheckpoint(save_best_only=True): the best of what?", write='monitor="val_loss"')
        rules: dict[str, Keep] = {} if save_best_only else {prefix: KeepNewest(5) if config is None else config.keep}
        if monitor is not None:
            rules[f"best-{monitor}"] = KeepNewest(1)
        super().__init__(rules, **options)
        set_default_name(self, f"ModelCheckpoint({monitor if save_best_only else prefix})")
        self.prefix = prefix
        self.limits = () if save_best_only else (prefix,)
        self.save_best_only = save_best_only
        self.async_save = config is not None and config.async_save
        self.exception_save = config is not None and config.exception_save
        self._latest: str | None = None
        self._watch: BestWatch | None = None
        if monitor is not None:
            self.reads = (monitor,)
            self._watch = BestWatch(monitor, better, threshold=initial_value_threshold)
        if save_freq is not None and save_freq != "epoch":
            self.when(Every(steps=positive("ModelCheckpoint", "save_freq", save_freq)))
        elif save_freq is None and config is not None:
            self.when(config.schedule)

    @property
    def latest_ckpt_file_name(self) -> str | None:
        """The folder of the run's newest checkpoint, or None before the first."""
        return self._latest

    @property
    def best(self) -> Best | None:
        """The best value so far, and its step; None without a metric to monitor."""
        return None if self._watch is None else self._watch.best

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        if self._watch is not None:
            self._watch.begin(run, self)

    def on_trigger(self, run: Run) -> None:
        if not self.save_best_only:
            self.ask(run, self.prefix, in_background=self.async_save)
        self._save_best(run)

    def on_epoch_end(self, run: Run) -> None:
        if run.epoch_complete:  # what validation finds belongs to this step, whatever the schedule
            self._save_best(run, final_only=True)

    def on_val_epoch_end(self, run: Run) -> None:
        if is_in_training(run):
            self._save_best(run, final_only=True)

    def on_exception(self, run: Run) -> None:
        if self.exception_save:
            run.save(EXCEPTION, keep=KeepNewest(1))

    def on_save(self, tags: Sequence[str], path: Any) -> None:  # type: ignore[override]
        super().on_save(tags)
        self._latest = str(path)

    def on_load(self, path: Any) -> None:
        self._latest = str(path)

    def _save_best(self, run: Run, *, final_only: bool = False) -> None:
        if self._watch is None:
            return
        tag = f"best-{self._watch.metric}"
        if self.was_lost(run, tag):
            self._watch.take_back()
        if self._watch.has_new_best(run, final_only=final_only):
            self.ask(run, tag, in_background=self.async_save, measured=self._watch.measured)

    def reset(self) -> None:
        super().reset()
        self._latest = None
        if self._watch is not None:
            self._watch.reset()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "best": None if self._watch is None else self._watch.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self._watch is not None and state["best"] is not None:
            self._watch.load_state_dict(state["best"])


def _refuse_others(prefix: Any, save_weights_only: bool, by_epoch: bool | None, interval: int | None) -> None:
    if not isinstance(prefix, str) or not prefix or any(character in prefix for character in "/\\{}"):
        raise BadArgument(
            f"ModelCheckpoint(prefix={prefix!r}) is no plain word; it is a tag, and no path or template.",
            write='prefix="resnet", and give the Runner or Loop workdir="runs/resnet"',
        )
    if save_weights_only:
        raise BadArgument(
            "ModelCheckpoint(save_weights_only=True): a checkpoint is what a run can go on from.",
            leave="it out; the weights are model.safetensors in each checkpoint",
        )
    if by_epoch is not None or interval is not None:
        unit = "epochs" if by_epoch in (None, True) else "iterations"
        number = interval if interval is not None and interval > 0 else 1
        raise BadArgument(
            "ModelCheckpoint takes a schedule, not by_epoch= and interval=.", write=f".when(Every({unit}={number}))"
        )
