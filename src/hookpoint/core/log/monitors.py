"""Monitors: send records to all monitors, and look up the latest values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from hookpoint.core.hooks.entry import MONITOR, Entry
from hookpoint.core.log.metrics import Metrics
from hookpoint.core.log.monitor_queue import MonitorQueue
from hookpoint.core.log.records import Kind, Record
from hookpoint.core.logger import logger

if TYPE_CHECKING:
    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.run_view import RunView
    from hookpoint.core.schedule.clocks import Clocks


DRAIN_SECONDS = 10.0  # how long a run waits for a monitor; after that, the monitor counts as blocked
LEAVE_SECONDS = 1.0  # how long a run waits after a second signal, or for a monitor that is already blocked
END_SECONDS = 60.0  # how long a run waits for a local monitor's on_run_end, which may have to finish a file


class Calls(Protocol):
    """Background calls to asynchronous callbacks. When the run waits for its monitors, it also waits for these calls."""

    def take_errors(self) -> list[Exception]: ...
    def settle(self) -> None: ...
    def drain(self, *, is_leaving: bool) -> None: ...
    def close(self) -> None: ...


class Monitors:
    """A run's monitors. Callbacks can also read a metric's latest value and history here."""

    def __init__(self, hooks: Hooks, run: RunView, metrics: Metrics, clocks: Clocks) -> None:
        self.is_muted = False
        self.calls: Calls | None = None
        self._metrics, self._clocks, self._run, self._hooks = metrics, clocks, run, hooks
        self._entries = {
            MonitorQueue(entry.name, partial(self._deliver, entry), drops=getattr(entry.subject, "outside", False)): entry
            for entry in hooks.entries
            if entry.kind == MONITOR
        }
        self._gates = {queue: gates for queue, entry in self._entries.items() if (gates := entry.gates())}
        self._queues = list(self._entries)
        self._reported: set[MonitorQueue[Record]] = set()
        self._resolver: MonitorQueue[Record] = MonitorQueue("values", _resolve)

    def get_latest(self, name: str) -> float:
        """Return the latest value of a metric. Raise MissingMetric if there is none."""
        return self._metrics[name]

    def get_history(self, name: str) -> list[tuple[int, float]]:
        """Return the history of a metric as (step, value) pairs, oldest first. The list is empty if there are no values.

        The history contains epoch means, validation results and values logged outside an iteration. It keeps the latest 10,000.
        """
        return self._metrics.history(name)

    def put_scalar(self, name: str, value: Any) -> None:
        """Log a single value under exactly this name, even in validation. Unlike `run.log`, this does not average values."""
        self._run.put_scalar(name, value)

    def put_image(self, name: str, image: Any) -> None:
        """Send an image to the monitors: height x width x channels, or a batch of such images."""
        self._run.put_image(name, image)

    def put_event(self, name: str, **fields: Any) -> None:
        """Send an event to the monitors."""
        self._run.put_event(name, **fields)

    def start(self) -> None:
        """Start the monitors' threads, so that no step has to start them."""
        for queue in self._queues:
            queue.start()

    def put(self, kind: Kind, values: dict[str, Any], *, at: str = "value", mode: str | None = None) -> None:
        """Send a record to every monitor, except those currently disabled by a wrapper such as EnableCallbackIf."""
        if self.is_muted:
            return
        clocks = self._clocks
        record = Record(kind, values, clocks.step, clocks.epoch, at, mode=mode, iteration=clocks.iteration)
        receivers = self._queues
        if self._gates:
            receivers = [queue for queue in receivers if queue not in self._gates or self._is_open(queue)]
        for queue in receivers:
            if queue.put(record, DRAIN_SECONDS):
                self._report_blocked(queue)
        if not receivers and kind == "scalars" and any(getattr(value, "is_pending", False) for value in values.values()):
            self._resolver.put(record, DRAIN_SECONDS)

    def _is_open(self, queue: MonitorQueue[Record]) -> bool:
        gates, run = self._gates[queue], self._run
        return self._entries[queue].decided("on_records", lambda: all(gate.ready(run, None) for gate in gates))

    def raise_errors(self) -> None:
        """Raise the errors from monitors and asynchronous callbacks with `on_error="raise"`, on the training thread."""
        errors = self.take_errors()
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("callbacks failed in the background", errors)

    def take_errors(self) -> list[Exception]:
        """Return the errors raised in the background. The monitors and callbacks that failed are not called again."""
        errors = [queue.error for queue in self._queues if queue.error is not None]
        if errors:
            self._queues = [queue for queue in self._queues if queue.error not in errors]
        return errors if self.calls is None else errors + self.calls.take_errors()

    def drain(self, seconds: float | None = None, *, is_leaving: bool = False) -> None:
        """Wait up to `seconds` for all monitors to receive their records. Log how many records were lost.

        The default is 10 seconds, or 1 second if `is_leaving` is True.
        """
        if seconds is None:
            seconds = min(LEAVE_SECONDS, DRAIN_SECONDS) if is_leaving else DRAIN_SECONDS
        queues = (*self._queues, self._resolver)
        for queue in queues:
            queue.hurry()
        deadline = monotonic() + seconds
        for queue in queues:
            was_blocked = queue.is_blocked
            left = queue.drain(min(deadline, monotonic() + LEAVE_SECONDS) if was_blocked else deadline)
            if was_blocked and left:
                _warn("%s is still blocked: %d records did not reach it", queue.name, left + queue.dropped)
                continue
            if left and queue.error is None:
                _warn("%s was too slow: %d records did not reach it within %g s", queue.name, left, seconds)
            if queue.dropped:
                _warn("%s was too slow: the oldest %d records were dropped", queue.name, queue.dropped)
        if self.calls is not None:
            self.calls.drain(is_leaving=is_leaving)

    def end_run(self, *, is_leaving: bool = False) -> list[Exception]:
        """Call on_run_end on each monitor, with a time limit. Return the errors.

        Each call runs on a separate thread, so the process can exit even if a call never returns.
        """
        limits = {
            entry.name: LEAVE_SECONDS if is_leaving or queue.is_in_hand else DRAIN_SECONDS if queue.drops else END_SECONDS
            for queue, entry in self._entries.items()
        }
        return self._hooks.contain("on_run_end", self._run, monitors=True, around=partial(_with_limit, limits))

    def settle(self) -> None:
        """Wait until the local monitors have received their records, so that a checkpoint contains their current state.

        A blocked monitor is reported once. Until it catches up, the run does not wait for it, and checkpoints omit its state.
        """
        local = [queue for queue in self._queues if not queue.drops]
        for queue in local:
            if not queue.is_blocked:
                queue.hurry()
        for queue in local:
            if queue.wait(DRAIN_SECONDS):
                self._report_blocked(queue)
            self._entries[queue].is_blocked = queue.is_blocked
        self.settle_calls()

    def settle_calls(self) -> None:
        """Wait until all queued calls to asynchronous callbacks have returned, so that the callbacks' state can be read."""
        if self.calls is not None:
            self.calls.settle()

    def close(self) -> None:
        """End the threads. Records sent later are lost."""
        for queue in (*self._queues, self._resolver):
            queue.close()
        if self.calls is not None:
            self.calls.close()

    def _report_blocked(self, queue: MonitorQueue[Record]) -> None:
        if queue not in self._reported:
            self._reported.add(queue)
            where = f" ({place})" if (place := queue.where()) else ""
            line = (
                "%s is blocked: on_records has not returned for %g s%s; the run continues and no longer waits for this monitor"
            )
            logger.warning(line, queue.name, DRAIN_SECONDS, where)

    def _deliver(self, entry: Entry, records: list[Record]) -> None:
        for handler in entry.handlers:
            if handler.point == "on_records":
                try:
                    entry.contained(handler.call, "on_records")({"records": records, "run": self._run})
                except BaseException as error:
                    error.add_note(f"in callback {entry.name} at on_records")
                    raise


def _with_limit(limits: Mapping[str, float], name: str, call: Callable[[], object]) -> None:
    """Call a function, with a time limit if `limits` contains a limit for the callback `name`.

    With a limit, the function runs on a separate thread. If it raises in time, its exception is raised again on this thread.
    If it has not returned in time, a warning is logged.
    """
    if name not in limits:
        call()
        return
    errors: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=copy_context().run, args=(work,), name=f"hookpoint {name} on_run_end", daemon=True)
    thread.start()
    thread.join(limits[name])
    if thread.is_alive():
        logger.warning("%s is blocked: on_run_end has not returned for %g s; the run ends anyway", name, limits[name])
    for error in errors:
        raise error


def _resolve(records: list[Record]) -> None:
    for record in records:
        record.scalars()


def _warn(text: str, *values: object) -> None:
    with suppress(OSError, ValueError):  # without a log handler, Python prints to stderr, which may be closed
        logger.warning(text, *values)
