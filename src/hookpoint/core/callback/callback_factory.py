"""CallbackFactory: build a callback from functions that receive the callback, as in tensorpack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import info_of

Action = Callable[["CallbackFactory"], object]


class CallbackFactory(Callback):
    """Call functions at setup, before training, on each trigger and after training. Each function receives the callback.

    The callback has the attributes `trainer` (the run), `epoch_num` (the current epoch) and `global_step` (the step count).

    >>> CallbackFactory(trigger=lambda self: print(self.epoch_num))  # doctest: +ELLIPSIS
    <...CallbackFactory object at ...>
    """

    writes_anything = True

    def __init__(
        self,
        setup_graph: Action | None = None,
        before_train: Action | None = None,
        trigger: Action | None = None,
        after_train: Action | None = None,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._actions = {
            "on_setup": setup_graph,
            "on_run_begin": before_train,
            "on_trigger": trigger,
            "on_run_end": after_train,
        }

    def on_setup(self, run: Any) -> None:
        self._act("on_setup", run)

    def on_run_begin(self, run: Any) -> None:
        self._act("on_run_begin", run)

    def on_trigger(self, run: Any) -> None:
        self._act("on_trigger", run)

    def on_run_end(self, run: Any) -> None:
        self._act("on_run_end", run)

    def _act(self, point: str, run: Any) -> None:
        action, info = self._actions[point], info_of(self)
        if action is not None:
            info.run = run
            try:
                action(self)
            finally:
                info.run = None
