"""StrictSync: turn any device synchronization between log steps into an error."""

from __future__ import annotations

import warnings

import torch

from hookpoint.core.callback.callback import Callback
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run


class StrictSync(Callback):
    """Make CUDA raise an error if any thread waits for the GPU during a training pass.

    If a callback caused the wait, the error names this callback.

    Validation and prediction may synchronize, even in the middle of a training pass. Without a GPU, this callback does nothing.
    After the pass, it restores CUDA's previous sync debug mode.
    """

    is_internal = True
    _mode_before: int | None = None

    def on_train_epoch_begin(self) -> None:
        if self._mode_before is None and torch.cuda.is_available():
            self._mode_before = torch.cuda.get_sync_debug_mode()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
                torch.cuda.set_sync_debug_mode("error")

    def on_train_epoch_end(self) -> None:
        if self._mode_before is not None:
            torch.cuda.set_sync_debug_mode(self._mode_before)
            self._mode_before = None

    on_val_epoch_begin = on_pred_epoch_begin = on_exception = on_run_end = on_train_epoch_end

    def on_val_epoch_end(self, run: Run) -> None:
        if any(one.mode == "train" and one.is_open for one in machine_of(run).scopes.passes):
            self.on_train_epoch_begin()

    on_pred_epoch_end = on_val_epoch_end
