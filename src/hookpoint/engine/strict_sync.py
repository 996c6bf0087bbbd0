"""StrictSync: turn any wait for the device between log steps into an error."""

from __future__ import annotations

import torch

from hookpoint.core.callback import Callback
from hookpoint.core.run import Run


class StrictSync(Callback):
    """Make CUDA refuse to wait on the training thread while a training pass runs; the error names the callback that did.

    Validation and prediction may wait, also in the middle of a training pass. Off a GPU there is nothing to wait for, and
    nothing is done. What was set before the run is set again after it.
    """

    _before: str | int = "default"

    def on_run_begin(self) -> None:
        self._before = torch.cuda.get_sync_debug_mode() if torch.cuda.is_available() else 0

    def on_train_epoch_begin(self) -> None:
        self._switch("error")

    def on_train_epoch_end(self) -> None:
        self._switch(self._before)

    def on_val_epoch_begin(self) -> None:
        self._switch(self._before)

    def on_val_epoch_end(self, run: Run) -> None:
        self._go_on(run)

    def on_pred_epoch_begin(self) -> None:
        self._switch(self._before)

    def on_pred_epoch_end(self, run: Run) -> None:
        self._go_on(run)

    def on_exception(self) -> None:
        self._switch(self._before)

    def on_run_end(self) -> None:
        self._switch(self._before)

    def _go_on(self, run: Run) -> None:
        if any(one.mode == "train" and one.is_open for one in run._loop.passes):
            self._switch("error")

    @staticmethod
    def _switch(mode: str | int) -> None:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode(mode)
