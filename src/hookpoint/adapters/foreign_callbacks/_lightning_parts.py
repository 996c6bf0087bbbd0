"""The parts of `trainer` that Lightning callbacks access: the strategy, the logger, and the loops."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookpoint.adapters.foreign_callbacks._offers import Caller, Offers


class Strategy(Offers):
    """A stand-in for `trainer.strategy`.

    Its methods do not communicate between ranks, because callbacks already receive the same values on all ranks.
    """

    __slots__ = ("_device",)

    SHOWN = "trainer.strategy"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self._device: Any = None

    @property
    def root_device(self) -> Any:
        if self._device is None:
            import torch

            run = self._caller.run
            parameters = getattr(run.model, "parameters", None)
            first = next(iter(parameters()), None) if parameters is not None else None
            device = run.device if run.device not in (None, "auto") else "cpu"
            self._device = torch.device(device) if first is None else first.device
        return self._device

    @property
    def is_global_zero(self) -> bool:
        return self._caller.run.is_chief

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        return decision

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return obj

    def barrier(self, name: str | None = None) -> None: ...

    def remove_checkpoint(self, filepath: str | os.PathLike[str]) -> None:
        """Delete a file or folder that `trainer.save_checkpoint` wrote."""
        if self._caller.run.is_chief:
            if os.path.isdir(filepath):
                shutil.rmtree(filepath)
            else:
                Path(filepath).unlink(missing_ok=True)


class Logger(Offers):
    """A logger that sends values to the run's monitors."""

    __slots__ = ()

    SHOWN = "trainer.logger"
    name, version, save_dir, group_separator = "lightning", "", None, "/"

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        for name, value in metrics.items():
            self._caller.run.put_scalar(name, value)

    def log_hyperparams(self, params: Any = None, *args: Any, **kwargs: Any) -> None: ...

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None: ...

    def finalize(self, status: str) -> None: ...

    def save(self) -> None: ...


class BatchProgress(Offers):
    """A stand-in for Lightning's `batch_progress`, which tells callbacks whether the current batch is the last one."""

    __slots__ = ()

    SHOWN = "trainer.fit_loop.epoch_loop.batch_progress"

    @property
    def is_last_batch(self) -> bool:
        progress = self._caller.run.progress
        # The current batch counts as done only after the callbacks have run.
        return progress is not None and progress.total is not None and progress.done >= progress.total


class ValidationLoop(Offers):
    """Whether a validation pass has run in the current epoch."""

    __slots__ = ("_has_run",)

    SHOWN = "trainer.fit_loop.epoch_loop.val_loop"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self._has_run = False

    def mark(self, has_run: bool) -> None:
        self._has_run = has_run


class EpochLoop(Offers):
    """The loop over the batches of an epoch."""

    __slots__ = ("batch_progress", "val_loop")

    SHOWN = "trainer.fit_loop.epoch_loop"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self.batch_progress, self.val_loop = BatchProgress(caller), ValidationLoop(caller)

    @property
    def _batches_that_stepped(self) -> int:
        return self._caller.run.step

    def _should_check_val_epoch(self) -> bool:
        return self._caller.run.val_loader is not None


class FitLoop(Offers):
    """The loop over epochs."""

    __slots__ = ("epoch_loop",)

    SHOWN = "trainer.fit_loop"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self.epoch_loop = EpochLoop(caller)


class LoggerConnector(Offers):
    """The logger connector, which tells Lightning's callbacks when to log."""

    __slots__ = ("_log_every_n_steps",)

    SHOWN = "trainer._logger_connector"

    def __init__(self, caller: Caller, log_every_n_steps: int) -> None:
        super().__init__(caller)
        self._log_every_n_steps = log_every_n_steps

    @property
    def should_update_logs(self) -> bool:
        run, number = self._caller.run, self._log_every_n_steps
        return (number > 0 and (run.step + 1) % number == 0) or run.stop_reason is not None
