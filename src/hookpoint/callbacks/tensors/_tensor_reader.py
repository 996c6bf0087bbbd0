"""TensorReader: what the callbacks that read tensors by name have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookpoint.callbacks.tensors._named_tensors import NamedTensors
from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import set_default_name

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.callbacks.tensors._named_tensors import Names
    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run


class TensorReader(Callback):
    """Read tensors by name, as `NamedTensors` says; derived classes say when, and what is done with them."""

    ranks = "chief"

    def __init__(self, names: Names, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.tensors = NamedTensors(type(self).__name__, names)
        set_default_name(self, f"{type(self).__name__}({','.join(self.tensors.sources)})")
        handlers = {"on_step_begin": self._take_gradients} if self.tensors.gradients else {}
        for point, handler in handlers.items():  # an optimizer's step is watched only where it has to be
            setattr(self, point, handler)

    def on_setup(self, run: Run) -> None:
        self.tensors.check(run)

    def on_run_begin(self, run: Run) -> None:
        self.tensors.begin(run, keeps=self._is_triggered_after_epochs(run))

    def on_train_iter_end(self, run: Run) -> None:
        self.tensors.end_iteration(run)

    def on_run_end(self) -> None:
        self.tensors.clear()

    def _take_gradients(self, run: Run) -> None:
        self.tensors.take_gradients(run)

    def _is_triggered_after_epochs(self, run: Run) -> bool:
        for entry in run.hooks.entries:
            if entry.subject is self and any(handler.point == "on_trigger" for handler in entry.handlers):
                return entry.schedule is None or "epoch" in entry.schedule.moments()
        return False
