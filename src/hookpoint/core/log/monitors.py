"""Monitors: the way from what is logged to those who receive it, and the place to look a value up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from hookpoint.core.hooks.entry import MONITOR, Entry
from hookpoint.core.log._monitor_queue import MonitorQueue
from hookpoint.core.log.metrics import Metrics
from hookpoint.core.log.records import Kind, Record

if TYPE_CHECKING:
    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.run_view import RunView
    from hookpoint.core.schedule.clocks import Clocks

logger = logging.getLogger("hookpoint")

DRAIN_SECONDS = 10.0  # how long a run waits for a monitor, once: one that was found blocked is not waited for again
LEAVE_SECONDS = 1.0  # the same for one that was found blocked, and for a process that is to leave after a second signal
END_SECONDS = 60.0  # how long a run waits for on_run_end of a local monitor, which may have a file to finish


class Monitors:
    """Everything that receives records, as one; callbacks ask it for the latest value of a metric and its history."""

    def __init__(self, hooks: Hooks, run: RunView, metrics: Metrics, clocks: Clocks) -> None:
        self.is_muted = False
        self._metrics = metrics
        self._clocks = clocks
        self._run = run
        self._hooks = hooks
        self._entries = {
            MonitorQueue(entry.name, partial(self._hand_over, entry), drops=getattr(entry.subject, "outside", False)): entry
            for entry in hooks.entries
            if entry.kind == MONITOR
        }
        self._gates = {delivery: entry.gates() for delivery, entry in self._entries.items()}
        self._deliveries = list(self._gates)
        self._said_blocked: set[MonitorQueue] = set()
        self._resolver = MonitorQueue("values", _resolve)

    def get_latest(self, name: str) -> float:
        """Return the latest value of a metric; a missing one is an error that lists what there is."""
        return self._metrics[name]

    def get_history(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of the last 10,000 final values of a metric, the oldest first; empty if there are none."""
        return self._metrics.history(name)

    def put_scalar(self, name: str, value: Any) -> None:
        """Log a value under just this name, also in validation. It keeps its step: only `run.log` averages."""
        self._run.put_scalar(name, value)

    def put_image(self, name: str, image: Any) -> None:
        """Send an image, height x width x channels or a batch of such, to the monitors."""
        self._run.put_image(name, image)

    def put_event(self, name: str, **fields: Any) -> None:
        """Send word of something that happened to the monitors."""
        self._run.put_event(name, **fields)

    def put(self, kind: Kind, values: dict[str, Any], *, at: str = "value", mode: str | None = None) -> None:
        """Send a record to every monitor; a wrapper such as EnableCallbackIf says now whether the one in it gets this."""
        if self.is_muted:
            return
        clocks = self._clocks
        record = Record(kind, values, clocks.step, clocks.epoch, at, mode=mode, iteration=clocks.iteration)
        receivers = [one for one in self._deliveries if all(gate.ready(self._run, None) for gate in self._gates[one])]
        for delivery in receivers:
            if delivery.put(record, DRAIN_SECONDS):
                self._say_blocked(delivery, DRAIN_SECONDS)
        if not receivers and kind == "scalars" and any(getattr(value, "is_pending", False) for value in values.values()):
            self._resolver.put(record, DRAIN_SECONDS)

    def raise_errors(self) -> None:
        """Raise what a monitor with `on_error="raise"` failed with, on the thread that trains."""
        errors = self.take_errors()
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("monitors failed", errors)

    def take_errors(self) -> list[Exception]:
        """Return what monitors failed with; they get no further records."""
        failed = [delivery for delivery in self._deliveries if delivery.error is not None]
        for delivery in failed:
            self._deliveries.remove(delivery)
        return [delivery.error for delivery in failed if delivery.error is not None]

    def drain(self, seconds: float | None = None, *, is_leaving: bool = False) -> None:
        """Wait until every monitor has what was sent to it, for so long at most, by default 10 s; say what was lost."""
        seconds = _limit(is_leaving) if seconds is None else seconds
        deliveries = (*self._deliveries, self._resolver)
        for delivery in deliveries:
            delivery.hurry()
        deadline = monotonic() + seconds
        for delivery in deliveries:
            was_blocked = delivery.is_blocked
            left = delivery.drain(min(deadline, monotonic() + LEAVE_SECONDS) if was_blocked else deadline)
            if was_blocked and left:
                logger.warning("%s is still blocked: %d records did not reach it", delivery.name, left + delivery.dropped)
            elif left and delivery.error is None:
                logger.warning("%s was too slow: %d records did not reach it within %g s", delivery.name, left, seconds)
            if delivery.dropped and not (was_blocked and left):
                logger.warning("%s was too slow: the oldest %d records were dropped", delivery.name, delivery.dropped)

    def end_run(self, *, is_leaving: bool = False) -> list[Exception]:
        """Fire on_run_end of the monitors, each for a bounded time; return their errors.

        They are called on a thread, as `on_records` is: one that never returns does not keep the process from ending.
        """
        most = {
            entry.name: LEAVE_SECONDS if is_leaving or queue.is_in_hand else DRAIN_SECONDS if queue.drops else END_SECONDS
            for queue, entry in self._entries.items()
        }
        return self._hooks.contain("on_run_end", self._run, monitors=True, around=partial(_bounded, most))

    def settle(self) -> None:
        """Wait until the monitors of this machine have what was sent to them, so that a checkpoint knows where they stand.

        One that does not come is named once, and not waited for again; of its state, a checkpoint keeps nothing new.
        """
        local = [delivery for delivery in self._deliveries if not delivery.drops]
        for delivery in local:
            if not delivery.is_blocked:
                delivery.hurry()
        for delivery in local:
            if delivery.wait(DRAIN_SECONDS):
                self._say_blocked(delivery, DRAIN_SECONDS)
            self._entries[delivery].is_blocked = delivery.is_blocked

    def close(self) -> None:
        """End the threads; what was sent after this reaches nobody."""
        for delivery in (*self._deliveries, self._resolver):
            delivery.close()

    def _say_blocked(self, delivery: MonitorQueue, seconds: float) -> None:
        if delivery in self._said_blocked:
            return
        self._said_blocked.add(delivery)
        where = delivery.where()
        logger.warning(
            "%s blocks: it has not returned from on_records for %g s%s; the run continues, and does not wait for it again",
            delivery.name,
            seconds,
            f" ({where})" if where else "",
        )

    def _hand_over(self, entry: Entry, records: list[Record]) -> None:
        for handler in entry.handlers:
            if handler.point == "on_records":
                try:
                    entry.contained(handler.call, "on_records")({"records": records, "run": self._run})
                except BaseException as error:
                    error.add_note(f"in callback {entry.name} at on_records")
                    raise


def _limit(is_leaving: bool) -> float:
    return min(LEAVE_SECONDS, DRAIN_SECONDS) if is_leaving else DRAIN_SECONDS


def _bounded(most: Mapping[str, float], name: str, call: Callable[[], object]) -> None:
    """Make a call, on a thread where the callback has a limit of seconds; raise what it has raised until then."""
    if name not in most:
        call()
        return
    errors: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=copy_context().run, args=(work,), name=f"hookpoint {name} on_run_end", daemon=True)
    thread.start()
    if not done.wait(most[name]):
        logger.warning("%s blocks: it has not returned from on_run_end for %g s; the run ends without it", name, most[name])
    for error in errors:
        raise error


def _resolve(records: list[Record]) -> None:
    for record in records:
        record.scalars()
