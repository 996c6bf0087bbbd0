"""BackgroundCalls: call the handlers of asynchronous callbacks in order, each callback on its own thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from hookpoint.core.background._run_snapshot import RunSnapshot, logs_snapshot
from hookpoint.core.background._value_snapshot import ValueSnapshot
from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import info_of
from hookpoint.core.callback.current import CURRENT
from hookpoint.core.hooks.entry import Entry
from hookpoint.core.log.metrics import Logs
from hookpoint.core.log.monitor_queue import MonitorQueue
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run

CAPACITY = 16  # maximum number of queued calls; each call holds copies of its arguments
LINGER_SECONDS = 0.02
CALL_SECONDS = 60.0  # how long a run waits for one call
LEAVE_SECONDS = 1.0  # how long a run waits after a second signal, or for a callback that is already blocked
LAST_POINTS = ("on_exception", "on_run_end")


class Call(NamedTuple):
    """A queued call, with copies of its arguments. The callback's thread calls `ready` and then `function`."""

    point: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    run: RunSnapshot
    ready: Callable[[], None] | None


class BackgroundCalls:
    """The queues of a run's asynchronous callbacks.

    If a callback's queue is full, the training thread waits up to 60 seconds for room. If the callback has `outside = True`,
    the training thread does not wait: the oldest call is dropped and counted. A callback counts as blocked if one of its calls
    takes longer than 60 seconds. The run then logs one warning, and no longer waits for this callback. If a call fails, `wake`
    is called on the callback's thread, so that the training thread raises the error.
    """

    def __init__(self, run: Run, entries: Sequence[Entry]) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._run = run
        self._queues = {entry: self._queue(entry) for entry in entries}
        self._reported: set[Entry] = set()
        self._failed: set[Entry] = set()
        self._errors: deque[Exception] = deque()
        for entry in entries:
            entry.background = self

    def _queue(self, entry: Entry) -> MonitorQueue[Call]:
        return MonitorQueue(
            entry.name,
            partial(self._make, entry),
            drops=getattr(entry.subject, "outside", False),
            capacity=CAPACITY,
            linger_seconds=LINGER_SECONDS,
            one_by_one=True,
        )

    # On the training thread

    def send(self, entry: Entry, point: str, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> None:
        """Copy the arguments, and queue the call. If a value cannot be copied, the callback fails."""
        if (entry in self._failed or entry.disabled) and point not in LAST_POINTS:
            return
        try:
            call = self._call(entry, point, function, args, kwargs)
        except Exception as error:
            if entry.on_error == "raise":
                raise
            entry.fail(point, error)
            return
        if self._queues[entry].put(call, CALL_SECONDS):
            self._report_blocked(entry)

    def call(self, entry: Entry, point: str, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> None:
        """Call the function now. It gets a read-only run that includes the model, the optimizer and similar objects."""
        call = self._call(entry, point, function, args, kwargs, has_objects=True)
        function(*call.args, **call.kwargs)

    def take_errors(self) -> list[Exception]:
        """Return the errors to raise on the training thread."""
        return [self._errors.popleft() for _ in range(len(self._errors))]

    def settle(self) -> None:
        """Wait until all queued calls have returned, so that a checkpoint contains the callbacks' latest state."""
        for entry, queue in self._queues.items():
            if queue.drops and not entry.has_own_state:
                continue
            if not queue.is_blocked and _finish(queue, CALL_SECONDS):
                queue.is_blocked = True
                self._report_blocked(entry)
            entry.is_blocked = queue.is_blocked

    def drain(self, *, is_leaving: bool) -> None:
        """Wait for the remaining calls at the end of the run. Log how many calls did not end or were dropped."""
        for queue in self._queues.values():
            queue.hurry()
        for entry, queue in self._queues.items():
            seconds = LEAVE_SECONDS if is_leaving or queue.is_blocked else CALL_SECONDS
            left = _finish(queue, seconds)
            if left:
                where = f" ({place})" if (place := queue.where()) else ""
                _warn("%s was too slow: %d of its calls did not end within %g s%s", entry.name, left, seconds, where)
            if queue.dropped:
                _warn("%s was too slow: %d of its calls were dropped", entry.name, queue.dropped)

    def close(self) -> None:
        """End the threads."""
        for queue in self._queues.values():
            queue.close()

    def _call(
        self, entry: Entry, point: str, function: Any, args: Any, kwargs: Mapping[str, Any], *, has_objects: bool = False
    ) -> Call:
        run, snapshot, values = self._run, ValueSnapshot(), _flat(args, kwargs)
        names_run = any(value is run for value in values)
        view = RunSnapshot(entry.name, run, snapshot.of if names_run else None, has_objects=has_objects)
        snapshot.replace(run, view)
        for value in values:
            if isinstance(value, Logs):
                snapshot.replace(value, logs_snapshot(run, snapshot.of))
        copied = [snapshot.of(value) for value in args], {name: snapshot.of(value) for name, value in kwargs.items()}
        return Call(point, function, *copied, view, snapshot.ready())

    def _report_blocked(self, entry: Entry) -> None:
        if entry not in self._reported:
            self._reported.add(entry)
            where = f" ({place})" if (place := self._queues[entry].where()) else ""
            _warn(
                "%s is blocked: a call has not returned for %g s%s; the run continues and no longer waits for this callback."
                " Until the callback catches up, its oldest calls are dropped and checkpoints do not contain its state",
                entry.name,
                CALL_SECONDS,
                where,
            )

    # On a callback's thread

    def _make(self, entry: Entry, calls: list[Call]) -> None:
        call = calls.pop()
        if entry in self._failed and call.point not in LAST_POINTS:
            return
        CURRENT.set(call.run)
        if isinstance(entry.subject, Callback):
            info_of(entry.subject).run = call.run  # for self.global_step and similar attributes
        try:
            if call.ready is not None:
                call.ready()
            call.function(*call.args, **call.kwargs)
        except Exception as error:
            run = call.run
            error.add_note(f"in callback {entry.name} at {call.point} (step {run.step}, rank {run.rank}), in the background")
            self._failed.add(entry)
            self._errors.append(error)
            self.wake()


def background_calls(run: Run, entries: Sequence[Entry]) -> BackgroundCalls | None:
    """Return the BackgroundCalls of a run, or None if the run has no asynchronous callbacks."""
    asynchronous = [entry for entry in entries if entry.is_asynchronous]
    return BackgroundCalls(run, asynchronous) if asynchronous else None


def _flat(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return all arguments. If an argument is a dict, such as a payload, also return its values."""
    values = [*args, *kwargs.values()]
    return values + [item for value in values if type(value) is dict for item in value.values()]


def _finish(queue: MonitorQueue[Call], seconds: float) -> int:
    """Wait until all calls have returned, or until no call returns for `seconds`. Return the number of calls left."""
    left, before = queue.drain(0.0), 0
    while left and left != before:
        before, left = left, queue.drain(monotonic() + seconds)
    return left


def _warn(text: str, *values: object) -> None:
    with suppress(OSError, ValueError):  # without a log handler, Python prints to stderr, which may be closed
        logger.warning(text, *values)
