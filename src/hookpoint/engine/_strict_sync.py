"""StrictSync: turn any wait for the device between log steps into an error."""

from __future__ import annotations

import warnings

import torch

from hookpoint.core.callback.callback import Callback
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run


class StrictSync(Callback):
    """Make CUDA refuse to wait on the training thread while a training pass runs; the error names the callback that did.

    Validation and prediction may wait, also in the middle of a training pass. Off a GPU there is nothing to wait for, and
    nothing is done. What was set before is set again.
    """

    _found: int | None = None

    is_internal = True

    def on_train_epoch_begin(self) -> None:
        self._refuse_waits()

    def on_train_epoch_end(self) -> None:
        self._allow_waits()

    def on_val_epoch_begin(self) -> None:
        self._allow_waits()

    def on_val_epoch_end(self, run: Run) -> None:
        self._go_on(run)

    def on_pred_epoch_begin(self) -> None:
        self._allow_waits()

    def on_pred_epoch_end(self, run: Run) -> None:
        self._go_on(run)

    def on_exception(self) -> None:
        self._allow_waits()

    def on_run_end(self) -> None:
        self._allow_waits()

    def _go_on(self, run: Run) -> None:
        if any(one.mode == "train" and one.is_open for one in machine_of(run).scopes.passes):
            self._refuse_waits()

    def _refuse_waits(self) -> None:
        if self._found is None and torch.cuda.is_available():
            self._found = torch.cuda.get_sync_debug_mode()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")  # which nobody can act on
                torch.cuda.set_sync_debug_mode("error")

    def _allow_waits(self) -> None:
        if self._found is not None:
            torch.cuda.set_sync_debug_mode(self._found)
            self._found = None
