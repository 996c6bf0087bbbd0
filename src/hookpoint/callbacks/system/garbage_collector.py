"""GarbageCollector: collect garbage between steps, never during a step."""

from __future__ import annotations

import gc
import os
from threading import Lock
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.schedule.when import Every

GENERATIONS = (0, 1, 2)
FROZEN_BY_PYTHON = 1000  # Python 3.12 freezes its few hundred immortal objects. gc.freeze() freezes thousands.


class GarbageCollector(Callback):
    """Disable Python's automatic garbage collection during the run, and collect every `every` steps instead.

    Python starts an automatic collection whenever enough objects have been created, even in the middle of a step. The more
    objects exist, the longer a collection takes. In a distributed run, ranks collect at different times, and each collection
    makes the other ranks wait. With this callback, all ranks collect after the same step, once its work is queued on the
    device. Every `every` steps, they collect the objects in all generations up to `generation`; at the end of each epoch, they
    collect all objects. `.when(...)` replaces the step schedule. With `freeze`, objects that exist when the run begins are
    excluded, which makes collections faster. Only objects in reference cycles have to wait for a collection; all others are
    freed as usual.

    At the end of the run, the previous state is restored: whether collection was enabled, and which objects were frozen.
    Thresholds are never changed. If several callbacks disable collection, even in nested runs, the previous state is restored
    when the last of their runs ends. A forked process, such as a loader worker, collects as usual.

    Listens to on_run_begin, on_epoch_end and on_run_end. Triggered on a step schedule.

    >>> import gc
    >>> with Loop([GarbageCollector(every=100)]) as run:
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """

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


class AutomaticGc:
    """Disable this process's automatic collection while at least one holder exists.

    The last holder restores the previous state: whether collection was enabled, and which objects were frozen. Thresholds are
    never changed. If other code has already frozen objects, they stay frozen, and no others are frozen. A forked process, such
    as a loader worker, collects as usual.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._was_on = False
        self._has_frozen = False
        self._watches_forks = False

    def hold(self, *, freeze: bool = False) -> None:
        """Disable automatic collection and collect once.

        With `freeze`, exclude the objects that exist now from later collections.
        """
        with self._lock:
            if self._holders == 0:
                self._was_on = gc.isenabled()
                if not self._watches_forks and hasattr(os, "register_at_fork"):
                    self._watches_forks = True
                    os.register_at_fork(after_in_child=self._after_fork)
            self._holders += 1
            gc.disable()
            gc.collect()
            if freeze and not self._has_frozen and gc.get_freeze_count() < FROZEN_BY_PYTHON:
                self._has_frozen = True
                gc.freeze()

    def release(self) -> None:
        """Release the hold. The last holder restores the previous state."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._restore()

    def _restore(self) -> None:
        if self._has_frozen:
            self._has_frozen = False
            gc.unfreeze()
        if self._was_on:
            gc.enable()

    def _after_fork(self) -> None:
        self._lock = Lock()
        if self._holders:
            self._holders = 0
            self._restore()


AUTOMATIC = AutomaticGc()
