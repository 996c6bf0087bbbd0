"""GarbageCollector: collect garbage between steps, and never in one."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.callbacks.system._automatic_gc import AUTOMATIC
from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument
from hookpoint.core.schedule.when import Every

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options

GENERATIONS = (0, 1, 2)


class GarbageCollector(Callback):
    """Switch Python's automatic garbage collection off while the run goes on, and collect every so many steps instead.

    Left to itself it starts whenever enough objects were made, in the middle of a step, and takes longer the more objects there
    are; where several processes train together, each waits for the slowest at a moment of its own, and here all collect after
    the same step. Every `every` steps the youngest objects are looked at, up to `generation`, when the step's work was handed
    to the device; at the end of each epoch all of them are. `.when(...)` sets another schedule. With `freeze` what is there
    when the run begins is left out of every collection, which is then shorter. Objects that nothing else refers to are freed
    at once as ever: only those that refer to each other in circles wait.

    At the end all is as it was: whether it was on, and what was frozen; thresholds are not touched. Several of them, also in
    runs inside of runs, hold it together, and the last one puts it back. A forked process, such as a loader's worker, collects
    by itself.

    Listens to on_run_begin, on_epoch_end and on_run_end; triggered by steps. Keeps nothing in the checkpoint but when it is
    due. Runs on all ranks. A step pays a comparison, and none of the pauses; a collection takes a millisecond or more.

    >>> import gc
    >>> with Loop([GarbageCollector(every=100)]) as run:
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """

    def __init__(self, every: int = 1000, *, generation: int = 1, freeze: bool = False, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.every = whole("GarbageCollector", "every", every, least=1)
        if generation not in GENERATIONS or isinstance(generation, bool):
            raise BadArgument(f"GarbageCollector(generation={generation!r}) means nothing.", choose="0, 1 or 2")
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
