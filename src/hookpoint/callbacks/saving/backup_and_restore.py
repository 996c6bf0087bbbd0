"""BackupAndRestore: always have one checkpoint to go on from."""

from __future__ import annotations

from os import PathLike
from typing import Literal, Unpack

from hookpoint.callbacks._shared.saver import Saver, positive, refuse_place
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.when import Every
from hookpoint.storage.workdir.retention import KeepNewest


class BackupAndRestore(Saver):
    """Save each epoch, or every so many steps, and keep the newest only: the run can always be gone on with.

    Restoring is the run's own doing: starting it again in its workdir goes on from there, in the middle of an epoch too.
    `save_freq` is "epoch" or a number of optimizer steps, which are Keras's batches; MindSpore's epochs are
    `.when(Every(epochs=n))`. `double_checkpoint` keeps the one before as well. `backup_dir` is refused, as the workdir decides,
    and so is `delete_checkpoint=True`: the last state is what a longer run goes on from.

    Triggered at the end of each complete epoch or, with a number, at on_iter_end of training; `.when(...)` moves it. Reads and
    writes no metrics. Keeps the step it last saved at in the checkpoint. Runs on all ranks. A step pays an integer comparison
    at most.

    >>> BackupAndRestore(save_freq=500).schedule
    Every(steps=500)
    """

    def __init__(
        self,
        backup_dir: str | PathLike[str] | None = None,
        save_freq: int | Literal["epoch"] = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = False,
        **options: Unpack[Options],
    ) -> None:
        refuse_place("BackupAndRestore", "backup_dir", backup_dir)
        if delete_checkpoint:
            raise BadArgument(
                "BackupAndRestore(delete_checkpoint=True): the last state of a run stays, for a longer run to go on from.",
                leave="it out, and delete the workdir when you are done with it",
            )
        self.tag = "backup"
        super().__init__({self.tag: KeepNewest(2 if double_checkpoint else 1)}, **options)
        self.limits = (self.tag,)
        if save_freq != "epoch":
            self.when(Every(steps=positive("BackupAndRestore", "save_freq", save_freq)))

    def on_trigger(self, run: Run) -> None:
        self.ask(run, self.tag)
