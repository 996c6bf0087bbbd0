"""Data points: on_sample and on_batch_made. They fire in the process that loads the data, where handlers cannot use the run."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import info_of
from hookpoint.core.callback.replace import Replace
from hookpoint.core.errors import BadData, BadSchedule, BadValue, HookpointWarning, NotACallback
from hookpoint.core.hooks.dispatch import Call
from hookpoint.core.hooks.entry import Entry
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.points import BY_NAME

SAMPLE, BATCH = "on_sample", "on_batch_made"


class BatchPlace(NamedTuple):
    """The position of a batch. It is sent along with the batch, because a worker process cannot read the run's clocks."""

    epoch: int
    mode: str | None
    batch_idx: int
    settings: Mapping[str, Any]

    def offered(self, worker: int | None) -> dict[str, Any]:
        """Return the arguments for handlers, except for the data."""
        return {
            "epoch": self.epoch,
            "mode": self.mode,
            "batch_idx": self.batch_idx,
            "settings": MappingProxyType(self.settings),
            "worker": worker,
        }


class DataPoints:
    """A loader's compiled callbacks. Pickling keeps only the list of callbacks, which is compiled again after unpickling."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self.callbacks = [callbacks] if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable) else [*callbacks]
        self._compile()

    def __getstate__(self) -> dict[str, Any]:
        return {"callbacks": self.callbacks}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.callbacks = state["callbacks"]
        self._compile()

    def _compile(self) -> None:
        rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
        hooks = Hooks(self.callbacks, rank=rank, local_rank=local_rank)
        ALIVE.add(self)
        self.entries = hooks.entries
        self._calls = {point: [_Call(call) for call in hooks.calls(point)] for point in (SAMPLE, BATCH)}
        for entry in self.entries:
            if not any(handler.point in self._calls for handler in entry.handlers):
                why = f"{entry.name} has neither on_sample nor on_batch_made, the only points of a loader."
                raise NotACallback(why, give="it to the Runner or the Loop")

    def listens(self, point: str | None = None) -> bool:
        """Return whether `point` has handlers. If `point` is None, return whether any point has handlers."""
        return bool(self._calls[point]) if point is not None else any(self._calls.values())

    def fire(self, point: str, value: Any, offered: dict[str, Any]) -> Any:
        """Call the handlers for a point. Return the sample or batch, or its replacement."""
        name = "sample" if point == SAMPLE else "batch"
        for call in self._calls[point]:
            offered[name] = value
            answer = call(offered)
            if isinstance(answer, Replace):
                value = answer.value
        return value

    def leave_run(self) -> None:
        """Clear the reference to the run. A forked worker inherits this reference, but cannot use the run."""
        for entry in self.entries:
            if isinstance(entry.subject, Callback):
                info_of(entry.subject).run = None


class _Call:
    """Call one handler, and pass it only the arguments that it has parameters for."""

    def __init__(self, call: Call) -> None:
        handler = call.handler
        self._name, self._point, self._method = call.entry.name, call.point, f"{handler.owner}.{handler.spelling}"
        if call.armed is not None or call.gates:
            why = f"{self._method} has a schedule, but a loader has no clocks."
            raise BadSchedule(why, test="the arguments epoch or batch_idx in the method instead")
        self._function = call.entry.contained(handler.function, call.point)
        self._by_position, self._by_keyword = handler.bind(BY_NAME[call.point].offers)

    def __call__(self, offered: Mapping[str, Any]) -> Any:
        try:
            answer = self._function(
                *[offered[source] for source in self._by_position],
                **{name: offered[source] for name, source in self._by_keyword.items()},
            )
            if answer is not None and not isinstance(answer, Replace):
                got = type(answer).__name__
                raise BadValue(f"{self._method} returned {got}, which has no effect.", write="return Replace(value)")
            return answer
        except BaseException as error:
            where = f"in callback {self._name} at {self._point} ({_where(offered)})"
            if isinstance(error, StopIteration):  # a loader would treat StopIteration as the end of the data
                raise RuntimeError(f"StopIteration was raised {where}") from error
            error.add_note(where)
            raise


def _where(offered: Mapping[str, Any]) -> str:
    index = f"index {offered['index']!r}, " if "index" in offered else ""
    worker = f"worker {offered['worker']}" if offered["worker"] is not None else "in the main process"
    return f"{index}batch {offered['batch_idx']} of epoch {offered['epoch']}, {worker}"


ALIVE: weakref.WeakSet[DataPoints] = weakref.WeakSet()  # the DataPoints of all loaders that still exist


def check_pass(hooks: Hooks, loader: Any, *, warns_idle: bool, saved: Any) -> None:
    """At the start of a pass, warn about handlers that are never called, and reject settings that would not be saved.

    `saved` contains the objects whose state is saved in checkpoints. It is None if the run saves no checkpoints.
    """
    points, settings = getattr(loader, "data_points", None), getattr(loader, "settings", None)
    if not isinstance(points, DataPoints):
        points = settings = None
    if warns_idle:
        for line in _idle(hooks, points):
            warnings.warn(line, HookpointWarning, stacklevel=2)
    if settings and saved is not None and not _holds(saved, settings):
        raise BadData(
            f"the loader's settings ({', '.join(settings)}) would not be in the checkpoint.",
            give='state={"data": loader.settings} to the Runner or the Loop',
        )


def _idle(hooks: Hooks, points: DataPoints | None) -> Iterator[str]:
    for call in (*hooks.calls(SAMPLE), *hooks.calls(BATCH)):
        entry = call.entry
        if not any(_has(points.entries, entry.subject) for points in ALIVE):
            yield f"{entry.name}.{call.handler.spelling} is never called: pass {entry.name} to a HookedLoader too"
    for entry in points.entries if points is not None else ():
        for handler in entry.handlers:
            if handler.point in BY_NAME and not BY_NAME[handler.point].in_data and not _has(hooks.entries, entry.subject):
                yield f"{entry.name}.{handler.spelling} is never called: pass {entry.name} to the run too"


def _has(entries: Iterable[Entry], subject: Any) -> bool:
    return any(entry.subject is subject for entry in entries)


def _holds(container: Any, settings: Any) -> bool:
    if container is settings:
        return True
    items = container.values() if isinstance(container, dict) else container if isinstance(container, list | tuple) else ()
    return any(_holds(item, settings) for item in items)
