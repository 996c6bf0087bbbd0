"""ModelSaver: save at regular intervals."""

from __future__ import annotations

from os import PathLike
from typing import Unpack

from hookpoint.callbacks._shared.arguments import integer, positive, string
from hookpoint.callbacks._shared.saver import Saver, reject_path
from hookpoint.core.callback.callback import Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.callback.knob import Knob
from hookpoint.core.checkpoint.store import Keep
from hookpoint.core.run.run import Run
from hookpoint.storage.retention import KeepAny, KeepEvery, KeepNewest


class ModelSaver(Saver):
    """Save when triggered, and keep the newest `max_to_keep` checkpoints.

    `max_to_keep=None` keeps all checkpoints. In addition, one checkpoint is kept permanently for every
    `keep_checkpoint_every_n_hours` hours of training. If this argument is None, or if the run has not trained for that many
    hours, no checkpoint is kept permanently. A run with a saver is also saved when it ends, stops or is interrupted; that
    checkpoint counts towards `max_to_keep`. ModelSaver never deletes other savers' checkpoints, the best checkpoint or the
    newest one.

    `checkpoint_dir` is not supported, because checkpoints are always in the workdir. Checkpoints are written in the background:
    training waits until the state is copied to host memory, but not until it is on disk. With `async_save=False`, training
    waits for both. If you use several ModelSavers in one run, give each of them a different `tag`.

    >>> ModelSaver(max_to_keep=3).when(Every(minutes=10) | Every(epochs=1)).schedule
    (Every(minutes=10) | Every(epochs=1))
    """

    knobs = (Knob("max_to_keep", int, low=1, about="checkpoints to keep"),)

    def __init__(
        self,
        max_to_keep: int | None = 10,
        keep_checkpoint_every_n_hours: float | None = 0.5,
        checkpoint_dir: str | PathLike[str] | None = None,
        *,
        async_save: bool = True,
        tag: str = "model",
        **options: Unpack[Options],
    ) -> None:
        reject_path("ModelSaver", "checkpoint_dir", checkpoint_dir)
        self.tag = string("ModelSaver", "tag", tag)
        super().__init__({tag: _keep(max_to_keep, keep_checkpoint_every_n_hours)}, async_save=async_save, **options)
        self._max_to_keep, self._hours = max_to_keep, keep_checkpoint_every_n_hours
        set_default_name(self, "ModelSaver" if tag == "model" else f"ModelSaver({tag})")
        self.limits = (tag,)

    @property
    def max_to_keep(self) -> int | None:
        """The number of checkpoints to keep; None keeps all."""
        return self._max_to_keep

    @max_to_keep.setter
    def max_to_keep(self, number: int | None) -> None:
        self.rules[self.tag] = _keep(number, self._hours)
        self._max_to_keep = number

    def on_trigger(self, run: Run) -> None:
        self.request(run, self.tag)


def _keep(number: int | None, hours: float | None) -> Keep | None:
    rules: list[Keep] = []
    if number is not None:
        rules.append(KeepNewest(integer("ModelSaver", "max_to_keep", number, least=1)))
    if hours is not None:
        write = "keep_checkpoint_every_n_hours=None to keep none permanently"
        minutes = 60 * positive("ModelSaver", "keep_checkpoint_every_n_hours", hours, write=write)
        rules.append(KeepEvery(minutes, waits=True))
    return None if number is None else KeepAny(*rules)
