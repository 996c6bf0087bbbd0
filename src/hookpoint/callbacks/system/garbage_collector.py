"""GarbageCollector: collect garbage between steps, never during one."""

from __future__ import annotations

import gc
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks.system._automatic_gc import AUTOMATIC
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.schedule.when import Every

GENERATIONS = (0, 1, 2)


class GarbageCollector(Callback):
    """Disable Python's automatic garbage collection during the run, and collect every `every` steps instead.

    The automatic collection starts in the middle of a step, whenever enough objects were created, and takes longer the more
    objects exist. In a team, each rank then waits for the slowest one at a different moment. Here, all ranks collect after the
    same step, when its work was handed to the device: objects up to `generation` every `every` steps, and all of them at the
    end of each epoch. `.when(...)` sets another schedule. With `freeze`, objects that exist when the run begins are excluded
    from every collection, which makes it shorter. Only objects in reference cycles wait for a collection.

    The previous state is restored at the end: whether the collection was enabled, and which objects were frozen. Thresholds are
    never changed. If more than one callback disables the collection, also in nested runs, the last one restores it. A forked
    process, such as a loader worker, collects as usual.

    Listens to on_run_begin, on_epoch_end and on_run_end; triggered by steps.

    >>> import gc
    >>> with Loop([GarbageCollector(every=100)]) as run:
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """

    keeps = ""
    step_cost = "one comparison; a collection takes a millisecond or more"

    def __init__(self, every: int = 1000, *, generation: int = 1, freeze: bool = False, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.every = integer("GarbageCollector", "every", every, least=1)
        if generation not in GENERATIONS or isinstance(generation, bool):
            raise BadArgument(f"GarbageCollector: generation must be 0, 1 or 2, got {generation!r}.")
        self.generation = generation
        self.freeze = freeze
        self.when(Every(steps=self.every))
        self._holds = False

    def on_run_begin(self) -> None:
        if not self._holds:
            self._holds = True
            AUTOMATIC.hold(freeze=self.freeze)

    def on_trigger(self) -> None:
        gc.collect(self.generation)

    def on_epoch_end(self) -> None:
        gc.collect()

    def on_run_end(self) -> None:
        if self._holds:
            self._holds = False
            AUTOMATIC.release()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_holds": False}
