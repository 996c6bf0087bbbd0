"""CallbackPipeline: a callback built from callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import run_method
from hookpoint.core.callback.foreign import adopted
from hookpoint.core.callback.handlers import call_directly

if TYPE_CHECKING:
    from hookpoint.core.schedule.when import When


NEVER_GATED = ("on_setup", "on_run_begin", "on_run_end", "on_exception", "on_save", "on_load", "on_records")


class CallbackPipeline(Callback):
    """Group callbacks into one. They run in the given order, with no other callback in between. Pipelines can be nested.

    `.when(...)` on a pipeline applies to every callback in it that has on_trigger but no schedule of its own. `ranks`,
    `on_error` and `set_chief_only()` apply to every callback in it, but savers always run on all ranks.

    >>> CallbackPipeline([Callback(), CallbackPipeline([Callback()])]).get_pipeline()  # doctest: +ELLIPSIS
    [<...Callback object at ...>, <...CallbackPipeline object at ...>]
    """

    gate: When | None = None
    before_train = False
    replaces_schedules = False  # whether the pipeline's schedule also replaces the callbacks' own schedules

    def __init__(self, callbacks: Iterable[Any] = (), *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._callbacks = tuple(callbacks)

    def get_pipeline(self) -> list[Any]:
        """Return the callbacks of this pipeline in order. A nested pipeline is returned as one callback."""
        return list(self._callbacks)

    def setup(self, component: Any, save_path: Any) -> None:
        super().setup(component, save_path)
        for callback in map(adopted, self.get_pipeline()):
            if hasattr(callback, "setup"):
                callback.setup(component, save_path)

    def run(self, hookpoint: str | None = None, logs: Mapping[str, Any] | None = None) -> None:
        run = logs.get("run") if logs is not None and self.gate is not None and hookpoint not in NEVER_GATED else None
        if self.gate is not None and run is not None and not self.gate.arm().ready(run, None):
            return
        for callback in map(adopted, self.get_pipeline()):
            own_run = run_method(callback) if isinstance(callback, Callback) else None
            (own_run or partial(call_directly, callback))(hookpoint, logs)
