"""StrictSync: turn any wait for the device between log steps into an error."""

from __future__ import annotations

import torch

from hookpoint.core.callback import Callback


class StrictSync(Callback):
    """Make CUDA refuse to wait on the training thread while a training pass runs; the error names the callback that did.

    Off a GPU there is nothing to wait for, and nothing is done.
    """

    def on_train_epoch_begin(self) -> None:
        self._switch("error")

    def on_train_epoch_end(self) -> None:
        self._switch("default")

    def on_val_epoch_begin(self) -> None:
        self._switch("default")

    def on_val_iter_end(self) -> None:
        """Validation may wait; it is not between log steps."""

    def on_val_epoch_end(self, run: object) -> None:
        if getattr(run, "is_training_pass_open", False):
            self._switch("error")

    def on_exception(self) -> None:
        self._switch("default")

    def on_run_end(self) -> None:
        self._switch("default")

    @staticmethod
    def _switch(mode: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode(mode)
