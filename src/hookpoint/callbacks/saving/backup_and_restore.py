"""BackupAndRestore: always have one checkpoint to resume from."""

from __future__ import annotations

from os import PathLike
from typing import Literal, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks._shared.saver import Saver, reject_path
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.when import Every
from hookpoint.storage.retention import KeepNewest


class BackupAndRestore(Saver):
    """Save every epoch, or every `save_freq` steps, and keep only the newest checkpoint.

    Restoring needs no callback: if you start the run again in the same workdir, it resumes, even in the middle of an epoch.
    `save_freq` is "epoch" or a number of optimizer steps. (Keras counts batches instead.) To save every n epochs, as in
    MindSpore, write `.when(Every(epochs=n))`. `double_checkpoint` also keeps the previous checkpoint. `async_save` works as in
    ModelSaver.

    `backup_dir` is not supported, because checkpoints are always in the workdir. `delete_checkpoint=True` is not supported
    either, because you need the last checkpoint to extend the run by more epochs. If `save_freq` is a number, the callback is
    triggered at on_iter_end during training.

    >>> BackupAndRestore(save_freq=500).schedule
    Every(steps=500)
    """

    def __init__(
        self,
        backup_dir: str | PathLike[str] | None = None,
        save_freq: int | Literal["epoch"] = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = False,
        *,
        async_save: bool = True,
        **options: Unpack[Options],
    ) -> None:
        reject_path("BackupAndRestore", "backup_dir", backup_dir)
        if delete_checkpoint:
            problem = "delete_checkpoint=True is not supported; extending a run requires the last checkpoint"
            raise BadArgument(f"BackupAndRestore: {problem}.", leave="it out, and delete the workdir yourself")
        self.tag = "backup"
        super().__init__({self.tag: KeepNewest(2 if double_checkpoint else 1)}, async_save=async_save, **options)
        self.limits = (self.tag,)
        if save_freq != "epoch":
            self.when(Every(steps=integer("BackupAndRestore", "save_freq", save_freq, least=1)))

    def on_trigger(self, run: Run) -> None:
        self.request(run, self.tag)
